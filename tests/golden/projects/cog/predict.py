class Predictor:
    """A model that cog would serve."""
