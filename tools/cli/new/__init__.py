"""Write a new Component."""
