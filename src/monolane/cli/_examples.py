"""What a person would write, below each command's help; a test reads each by its command."""

EXAMPLES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("generate",): (
        'monolane generate "def fibonacci(n):" --max-tokens 64',
        'monolane generate "Why is the sky blue?" --chat --model smollm2',
        "git diff | monolane generate - --chat --model smollm2",
    ),
    ("chat",): (
        "monolane chat --model smollm2",
        'monolane chat --model name/model:Q4_K_M --system "Be brief." --temperature 0.2',
    ),
    ("serve",): (
        "monolane serve --model smollm2 --port 8000",
        "monolane serve --model ./folder --host 0.0.0.0 --api-keys keys --policy share:4",
        "env MONOLANE_MODEL=smollm2 monolane serve --log-format json",
    ),
    ("pull",): (
        "monolane pull smollm2",
        "monolane pull name/model:Q4_K_M",
    ),
    ("list",): ("monolane list", "monolane list --json"),
    ("rm",): ("monolane rm name/model:Q4_K_M",),
    ("alias",): ("monolane alias coder name/model:Q4_K_M", "monolane alias coder --remove"),
    ("ps",): ("monolane ps", "monolane ps --json"),
    ("rank",): ("monolane rank --listen 0.0.0.0:7000 --model ./folder --key-file key",),
    ("key",): ("monolane key keys --name ada",),
    ("verify",): (
        "monolane verify --model smollm2",
        "monolane verify --lossless --model smollm2 --draft int4",
    ),
    ("export",): ("monolane export --model run --output model --dtype bfloat16",),
    ("quantize",): ("monolane quantize --model ./folder --output smaller --dtype int4",),
    ("train",): (
        "monolane train tiny --output run --set data.corpus=corpus",
        "monolane train laneformer_2b_pretrain --dry-run --world-size 192",
    ),
    ("launch",): (
        "monolane launch laneformer_20m --output run --set data.corpus=corpus --processes 2",
    ),
    ("sft",): ("monolane sft chats.jsonl --model ./folder --output tuned --lora 16",),
    ("retrofit",): (
        "monolane retrofit --model smollm2 --output lanes --lanes 3",
        "monolane retrofit --model smollm2 --output lanes --lanes 3 --delay 2 --distil text",
    ),
    ("sim",): (
        "monolane sim --model laneformer-2b --device 8xh200",
        "monolane sim --device 8xh200 --sweep link --plot link.svg",
    ),
    ("board",): (
        "monolane board run --output board.svg",
        "monolane board dense lanes --by tokens --output board.svg",
    ),
    ("trace",): ("monolane trace --model smollm2 --output trace.json --tokens 16",),
    ("doctor",): ("monolane doctor", "monolane doctor --model name/model"),
    ("plan",): ("monolane plan --model smollm2 --device h200",),
    ("plan", "header"): ("monolane plan header",),
    ("data", "prepare"): ("monolane data prepare recipe.toml --output corpus",),
    ("data", "report"): ("monolane data report corpus --output report.html",),
    ("data", "show"): ("monolane data show corpus --row 29 --length 64",),
    ("tune", "heads"): ("monolane tune heads --model ./folder --output heads",),
    ("tune", "nextn"): ("monolane tune nextn --model smollm2 --output layer",),
    ("tune", "eagle"): ("monolane tune eagle --model ./folder --output drafter",),
    ("bench",): (
        "monolane bench --model smollm2 --dtype bfloat16 --dtype int8 --output results",
        "monolane bench --synthetic laneformer-2b --before 1024",
    ),
    ("bench", "serve"): ("monolane bench serve http://127.0.0.1:8000 --clients 4 --plot load.svg",),
    ("eval",): (
        "monolane eval --model demo --tasks perplexity,parity --output results",
        "monolane eval --base-url http://127.0.0.1:8000 --tasks humaneval+ --output results",
    ),
    ("eval", "agent-loop"): (
        "monolane eval agent-loop --output loop -- agent --api {url} task.md",
    ),
}
