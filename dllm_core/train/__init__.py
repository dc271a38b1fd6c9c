"""Training of controllers: what is recorded while requests are decoded, and what is made of it. Knows no tables."""
