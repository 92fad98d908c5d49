"""Beam PTransforms and the pure functions under them: read, tokenise, plan, number, embed, write, mix.

The thinking is in functions that know no Beam; the transforms are thin wiring.
"""
