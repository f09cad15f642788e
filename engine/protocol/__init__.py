"""The messages between coordinator and stages, their bytes and their rules; nothing here does I/O."""
