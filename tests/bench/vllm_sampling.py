"""vLLM on one sampling job, as JSON on stdout: seconds and tokens of each round. Runs in vLLM's environment, in this process alone."""

import json
import os
import sys
import time
from pathlib import Path


def main(job):
    os.environ.update(
        OMP_NUM_THREADS=str(job["threads"]),
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_LEVEL="ERROR",
    )
    import torch
    from vllm import LLM, SamplingParams

    torch.set_num_threads(job["threads"])
    model = LLM(
        job["checkpoint"],
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=64,
        enable_prefix_caching=True,
        disable_log_stats=True,
    )
    settings = SamplingParams(
        n=job["group"], temperature=job["temperature"], top_p=job["top_p"], max_tokens=job["new_tokens"], ignore_eos=True, seed=0
    )
    rounds = []
    for ids in job["prompt_ids"]:  # unlike ones, so that no round finds its prompt in the cache
        begun = time.perf_counter()
        (answer,) = model.generate([{"prompt_token_ids": ids}], settings, use_tqdm=False)
        tokens = sum(len(one.token_ids) for one in answer.outputs)
        rounds.append({"seconds": time.perf_counter() - begun, "tokens": tokens})
    print(json.dumps({"rounds": rounds, "threads": torch.get_num_threads()}))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
