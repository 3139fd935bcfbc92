"""Draw still pictures as SVG."""
