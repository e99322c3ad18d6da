"""Create, check, scale, price and delete clusters on AWS."""
