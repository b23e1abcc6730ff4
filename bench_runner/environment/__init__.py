"""The software environment: lock, installed packages, files, libraries as loaded."""
