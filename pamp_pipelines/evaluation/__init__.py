"""Scores of checkpoints through lm-eval, the leaderboard over them, the walk from a score to what it was made of."""
