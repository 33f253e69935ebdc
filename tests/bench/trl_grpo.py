"""TRL's GRPO trainer on one job, as JSON on stdout: seconds of each step and of train(), and peak memory. Runs in TRL's environment."""

import json
import resource
import sys
import time
from pathlib import Path

start = time.perf_counter()

import torch  # noqa: E402 - the imports are part of the process that is timed
from datasets import Dataset  # noqa: E402
from peft import LoraConfig  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402


class Clock(TrainerCallback):
    """Takes the time of every optimizer step."""

    def __init__(self):
        self.begun, self.seconds = 0.0, []

    def on_step_begin(self, *_, **__):
        self.begun = time.perf_counter()

    def on_step_end(self, *_, **__):
        self.seconds.append(time.perf_counter() - self.begun)


def length(completion_ids, **_):
    return [float(len(ids)) for ids in completion_ids]


def main(job):
    torch.set_num_threads(job["threads"])
    tokenizer = AutoTokenizer.from_pretrained(job["checkpoint"])
    tokenizer.chat_template = None
    model = AutoModelForCausalLM.from_pretrained(job["checkpoint"], dtype=torch.float32)
    if job["end_token"] is not None:  # one that is never drawn, so that all completions have the same length on both sides
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(job["end_token"])
        model.config.eos_token_id = model.generation_config.eos_token_id = job["end_token"]
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    clock = Clock()
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=length,
        args=GRPOConfig(
            output_dir=job["scratch"],
            per_device_train_batch_size=job["group"],
            num_generations=job["group"],
            gradient_accumulation_steps=1,
            steps_per_generation=1,
            max_steps=job["steps"],
            max_completion_length=job["new_tokens"],
            temperature=job["temperature"],
            top_p=job["top_p"],
            beta=job["beta"],
            loss_type="grpo",
            use_bias_correction_kl=False,
            learning_rate=job["learning_rate"],
            lr_scheduler_type="cosine",
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            seed=0,
            shuffle_dataset=False,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"prompt": job["prompts"]}),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], lora_dropout=0.0),
        callbacks=[clock],
    )
    begun = time.perf_counter()
    trainer.train()
    print(
        json.dumps(
            {
                "step_seconds": clock.seconds,
                "train_seconds": time.perf_counter() - begun,
                "process_seconds": time.perf_counter() - start,
                "peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            }
        )
    )


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
