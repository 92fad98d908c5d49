"""Tokenisers, sentences and line ends of running text, and scripts."""
