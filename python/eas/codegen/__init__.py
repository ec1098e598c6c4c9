"""Texts made from IR."""
