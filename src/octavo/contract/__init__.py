"""The values that cross between the deciding and the computing plane."""
