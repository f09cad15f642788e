"""Training a NextN block (native MTP head) for a dense model, from the model's own text.

PyTorch is needed to train, not to run what was trained: it is imported when training begins, here and nowhere
else (`engine.training.backend`).
"""
