"""TRL's reward trainer on one job, as JSON on stdout: seconds of train() and peak memory. Runs in TRL's environment."""

import json
import resource
import sys
import time
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig, TaskType
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from trl import RewardConfig, RewardTrainer


def main(job):
    torch.set_num_threads(job["threads"])
    tokenizer = AutoTokenizer.from_pretrained(job["checkpoint"])
    tokenizer.chat_template = None
    model = AutoModelForSequenceClassification.from_pretrained(job["checkpoint"], num_labels=1, dtype=torch.float32)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.config.pad_token_id = tokenizer.pad_token_id
    trainer = RewardTrainer(
        model=model,
        args=RewardConfig(
            output_dir=job["scratch"],
            per_device_train_batch_size=job["batch_size"],
            gradient_accumulation_steps=1,
            num_train_epochs=1,
            max_length=None,
            learning_rate=job["learning_rate"],
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            seed=0,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(job["pairs"]),
        processing_class=tokenizer,
        peft_config=LoraConfig(
            task_type=TaskType.SEQ_CLS, r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], lora_dropout=0.0, modules_to_save=["score"]
        ),
    )
    begun = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - begun
    print(json.dumps({"train_seconds": seconds, "peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
