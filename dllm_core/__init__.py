"""The decoding engine: canvas, policies, models and the loop. Needs no Ray, no Arrow and no network."""
