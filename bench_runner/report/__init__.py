"""Renderings of frames, findings and comparisons: strings and files, nothing is printed here."""
