"""The pipeline's stages, in order: compose, base, validate, reward, grpo, evaluate, export.

At this package's top stands only what a person runs, one file per stage. Imports run one way:
entry -> learning -> model -> files -> core; `rewards/` imports core alone.
"""
