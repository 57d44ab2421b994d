"""What the parts of the oracle share: versions, loading in transformers, golden files. Runs in build/oracle-venv."""

import json
import os
import sys

# One thread: sums are then always in the same order, and the goldens come out the same again.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
    os.environ.setdefault(variable, "false" if variable.startswith("TOKENIZERS") else "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

FIXTURES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "test", "fixtures")


def shared_file(name):
    """A file of the data that is kept beside the repository, not in it."""
    root = os.environ.get("DSV3_SHARED",
                          os.path.join(os.path.dirname(FIXTURES), "..", "..", "shared"))
    path = os.path.normpath(os.path.join(root, "data", name))
    if not os.path.isfile(path):
        sys.exit("oracle: %s is not there; set DSV3_SHARED to the folder that has data/%s" % (path, name))
    return path


def versions():
    import jinja2
    import numpy
    import tokenizers
    import torch
    import transformers
    return {"jinja2": jinja2.__version__, "numpy": numpy.__version__, "python": sys.version.split()[0],
            "tokenizers": tokenizers.__version__, "torch": torch.__version__.split("+")[0],
            "transformers": transformers.__version__}


def load_model(directory, config=None):
    """The checkpoint in transformers: F32, eager attention, eager experts. Every weight must be found."""
    import torch
    import transformers
    torch.set_num_threads(1)
    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()
    kwargs = {"dtype": torch.float32, "attn_implementation": "eager", "output_loading_info": True}
    if config is None:
        config = transformers.AutoConfig.from_pretrained(directory)
    if config.model_type != "llama":
        kwargs["experts_implementation"] = "eager"
    model, info = transformers.AutoModelForCausalLM.from_pretrained(directory, config=config, **kwargs)
    lost = list(info["missing_keys"]) + list(info["mismatched_keys"])
    if config.tie_word_embeddings:
        lost = [key for key in lost if key != "lm_head.weight"]
    if lost:
        raise SystemExit("oracle: transformers did not find %s in %s" % (lost[:5], directory))
    return model.eval(), sorted(info["unexpected_keys"])


def write_compact_json(path, value):
    """One line per top-level entry (and per element of a top-level list): small, and readable in a diff."""
    def text(item):
        return json.dumps(item, ensure_ascii=False, separators=(",", ":"))
    parts = []
    for key, item in value.items():
        if isinstance(item, list) and item and isinstance(item[0], (dict, list)):
            parts.append("%s:[\n%s\n]" % (text(key), ",\n".join(text(element) for element in item)))
        elif isinstance(item, dict) and item and isinstance(next(iter(item.values())), dict):
            parts.append("%s:{\n%s\n}" % (text(key), ",\n".join("%s:%s" % (text(k), text(v)) for k, v in item.items())))
        else:
            parts.append("%s:%s" % (text(key), text(item)))
    with open(path, "w", encoding="utf-8") as out:
        out.write("{\n%s\n}\n" % ",\n".join(parts))
