"""transformers' Trainer on a model of some thousand parameters. Usage: ... BACKEND FOLDER."""

import os
import sys

import torch

torch.distributed.init_process_group(sys.argv[1])  # The one line more.

from transformers import (  # noqa: E402
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)


class Sentences(torch.utils.data.Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(count)
        self.words = torch.randint(5, 50, (count, 12), generator=generator)

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        words = self.words[index]
        return {"input_ids": words, "labels": (words.sum() % 2).long()}


def main():
    set_seed(5)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=50,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=16,
        )
    )
    arguments = TrainingArguments(
        output_dir=sys.argv[2],
        use_cpu=True,
        max_steps=8,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=2,
        save_steps=8,
        logging_steps=4,
        report_to=[],
        disable_tqdm=True,
        seed=5,
    )
    trainer = Trainer(model, arguments, train_dataset=Sentences(64), eval_dataset=Sentences(20))
    assert arguments.world_size == 2
    trainer.train()
    loss = trainer.evaluate()["eval_loss"]
    torch.distributed.barrier()
    assert os.path.exists(os.path.join(sys.argv[2], "checkpoint-8", "model.safetensors"))
    print(f"result {loss:.5f}")
    torch.distributed.destroy_process_group()


main()
