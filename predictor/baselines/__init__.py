"""Length predictors that the literature compares, one family a file, all behind `predictor.methods.Method`."""
