"""Measurements of the suite itself, run by ``make evaluate``; each prints a Markdown table."""
