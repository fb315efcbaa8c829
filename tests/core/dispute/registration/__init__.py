"""Models as they are made, and models whose weights were crafted against every tolerance."""
