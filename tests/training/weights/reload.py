"""Run in a child process: load exported directories with the public libraries only, and write their logits.

argv[1] is JSON: a list of {"directory", "base" (of an adapter, else null), "ids", "out"}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline


def main() -> None:
    torch.set_num_threads(1)
    for case in json.loads(sys.argv[1]):
        ids = torch.tensor(case["ids"])
        if case["base"]:  # in fp32, as in training; by default it would have its file's type
            model = AutoModelForCausalLM.from_pretrained(case["base"], dtype=torch.float32, attn_implementation="eager")
            model = PeftModel.from_pretrained(model, case["directory"])
        else:
            model = AutoModelForCausalLM.from_pretrained(case["directory"], attn_implementation="eager")
        model.eval()
        tokenizer = AutoTokenizer.from_pretrained(case["directory"])
        written = model.generate(**tokenizer("abc", return_tensors="pt"), max_new_tokens=5, do_sample=False)
        assert written.shape[1] > 3, written
        with torch.no_grad():
            save_file({"logits": model(ids).logits, "written": written}, case["out"])
        if not case["base"] and Path(case["directory"], "adapter_config.json").exists():
            (said,) = pipeline("text-generation", case["directory"])("abc", max_new_tokens=5, do_sample=False)
            assert said["generated_text"] == tokenizer.decode(written[0], skip_special_tokens=True), said
        print(case["directory"], model.dtype, tokenizer.decode(written[0]), flush=True)
    assert not any(name.partition(".")[0] in ("training", "tools") for name in sys.modules)


if __name__ == "__main__":
    main()
