"""The pipeline's stages, in order: compose, base, validate, reward, grpo, evaluate, export. Beside them sweep, which runs them
over chosen settings, compare, which holds two versions of the project side by side, and chat.

At this package's top stands only what a person runs, one file per stage. Imports run one way:
entry -> learning -> model -> files -> core; `pages/` and `rewards/` import core alone, `versions/` pages, files and core, `sweeps/`
versions and core.
"""
