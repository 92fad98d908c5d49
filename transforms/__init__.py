"""Beam PTransforms and the pure functions under them: read, tokenise, plan, number, embed, write, mix.

May import elmo_store and model, never pipeline. The thinking is in functions that know no Beam; the transforms are thin wiring.
"""
