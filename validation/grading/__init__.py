"""Blind grading of the reasoning suite: rubric, packet, score."""
