"""The pipeline's stages, in order: compose, base, validate, reward, grpo, evaluate, export. Beside them sweep, which runs them
over chosen settings, and compare, which holds two versions of the project side by side.

At this package's top stands only what a person runs, one file per stage. Imports run one way:
entry -> learning -> model -> files -> core; `versions/` imports files and core, `sweeps/` versions and core, `rewards/` core alone.
"""
