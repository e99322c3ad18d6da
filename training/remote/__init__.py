"""Programs that yard sends into running pods and containers. They import only the standard library."""
