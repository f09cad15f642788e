"""Widgets of the app: each shows a part of the one state, and holds none of its own."""
