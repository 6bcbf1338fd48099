// The table for people: help on a key, and docs/job-file.md. Pure.
#include <string.h>

#include "lib/spec/schema.h"

static const char *const titles[TD_SPEC_SECTIONS] = {
    "Tandem's own settings, of both kinds of job",
    "Tandem's own settings of GRPO jobs",
    "GRPO: data and rewards",
    "GRPO: actor and reference",
    "GRPO: rollout and model",
    "GRPO: algorithm, trainer and the rest",
    "SFT",
};

static const char intro[] =
    "# The job file\n"
    "\n"
    "<!-- Written by `tandem help job-file`; a test compares. Change lib/spec/schema_*.c. -->\n"
    "\n"
    "A job file is YAML with the keys of verl (commit b178a3c, its PPO trainer and its two SFT "
    "trainers) and a section of our own, `tandem`. `tandem run -f job.yaml a.b.c=value ...` sets "
    "single keys; the last one wins. `tandem validate` checks a file and reports every error at "
    "once, with its line.\n"
    "\n"
    "Every key of verl is in one of three classes. Keys that **act** do what they do in verl. Keys "
    "**without effect** are accepted, because results are the same without them, and listed once. "
    "**Refused** keys are accepted with one value only: to ignore another would change results. "
    "A file needs `data.train_files` and the model's path, and GRPO a grader for each data "
    "source.\n"
    "\n"
    "Not supported in the file: interpolations (`${...}`), aliases, merge keys, tags. Numbers may "
    "be "
    "written as 1e-6; `yes` and `no` are strings.\n";

static void print_default(const struct td_spec_key *key, struct td_buf *out) {
    if (!key->def) {
        td_buf_puts(out, "required");
    } else if (*key->def == '=') {
        td_buf_printf(out, "that of %s", key->def + 1);
    } else {
        td_buf_puts(out, key->def);
    }
}

void td_spec_print_help(const struct td_spec_key *key, unsigned kinds, struct td_buf *out) {
    static const char *const classes[] = {"",
                                          "has no effect here: ", "refused but for its default: "};
    td_buf_printf(out, "%s (%s)\n  %s%s\n", key->name,
                  kinds == TD_KINDS_GRPO  ? "kind grpo"
                  : kinds == TD_KINDS_SFT ? "kind sft"
                                          : "every kind",
                  classes[key->cls], key->help);
    td_buf_puts(out, "  value: ");
    td_spec_describe_type(key, out);
    td_buf_puts(out, "\n  default: ");
    print_default(key, out);
    td_buf_puts(out, "\n");
    if (key->verl) {
        td_buf_printf(out, "  verl's default: %s; ours differs: %s\n", key->verl, key->why);
    }
    if (key->process) {
        td_buf_puts(out, "  may change from run to run of the same job\n");
    }
}

// A cell of a Markdown table: | would end it.
static void print_cell(const char *text, struct td_buf *out) {
    for (; *text; text++) {
        if (*text == '|') {
            td_buf_puts(out, "\\");
        }
        td_buf_put(out, text, 1);
    }
}

static void print_row(const struct td_spec_key *key, struct td_buf *out) {
    struct td_buf cell = {0};
    td_buf_printf(out, "| `%s` | ", key->name);
    if (key->cls == TD_SPEC_DONE) {
        td_spec_describe_type(key, &cell);
        print_cell(td_buf_str(&cell), out);
        td_buf_puts(out, " | ");
    }
    td_buf_clear(&cell);
    if (key->cls != TD_SPEC_NO_EFFECT) {
        print_default(key, &cell);
        print_cell(td_buf_str(&cell), out);
        td_buf_puts(out, " | ");
    }
    print_cell(key->help, out);
    if (key->verl) {
        td_buf_puts(out, " (verl's default: ");
        print_cell(key->verl, out);
        td_buf_printf(out, "; %s)", key->why);
    }
    if (key->process) {
        td_buf_puts(out, " (may change from run to run)");
    }
    td_buf_puts(out, " |\n");
    td_buf_fini(&cell);
}

static void print_class(enum td_spec_class cls, const char *head, struct td_buf *out) {
    for (int s = 0; s < TD_SPEC_SECTIONS; s++) {
        const struct td_spec_section *section = td_spec_section(s);
        bool any = false;
        for (size_t i = 0; i < section->count; i++) {
            if (section->keys[i].cls != cls) {
                continue;
            }
            if (!any) {
                td_buf_printf(out, "\n### %s\n\n%s", titles[s], head);
                any = true;
            }
            print_row(&section->keys[i], out);
        }
    }
}

void td_spec_print_docs(struct td_buf *out) {
    td_buf_puts(out, intro);
    td_buf_puts(out, "\n## Keys that act\n");
    print_class(TD_SPEC_DONE, "| key | value | default | meaning |\n| --- | --- | --- | --- |\n",
                out);
    td_buf_puts(out, "\n## Refused keys\n");
    print_class(TD_SPEC_REFUSED,
                "| key | only value | why, and what to do |\n| --- | --- | --- |\n", out);
    td_buf_puts(out, "\n## Keys without effect\n");
    print_class(TD_SPEC_NO_EFFECT, "| key | why |\n| --- | --- |\n", out);
}
