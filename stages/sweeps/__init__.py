"""The jobs of a sweep: what is seen to before any starts, where and how one runs, what several share, and what became of them."""
