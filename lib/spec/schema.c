// The schema table as a whole: lookup and words about it. Pure.
#include "lib/spec/schema.h"

#include <string.h>

#include "lib/base/check.h"
#include "lib/spec/schema_int.h"

static const struct td_spec_section *const job_sections[TD_SPEC_SECTIONS] = {
    &td_spec_tandem_section, &td_spec_tandem_grpo_section, &td_spec_data_section,
    &td_spec_actor_section,  &td_spec_rollout_section,     &td_spec_trainer_section,
    &td_spec_sft_section,
};

static void print_foreign_job(unsigned has, unsigned kind, struct td_buf *out) {
    (void)has; // there are two kinds
    bool sft = kind == TD_KINDS_SFT;
    td_buf_printf(out, "belongs to jobs of kind %s, and tandem.kind is %s", sft ? "grpo" : "sft",
                  sft ? "sft" : "grpo");
}

const struct td_spec_table td_spec_jobs = {job_sections, TD_SPEC_SECTIONS,
                                           TD_KINDS_GRPO | TD_KINDS_SFT, print_foreign_job,
                                           "`tandem help keys` lists all"};

size_t td_spec_table_count(const struct td_spec_table *table) {
    size_t count = 0;
    for (int s = 0; s < table->section_count; s++) {
        count += table->sections[s]->count;
    }
    td_assert_op(count, <=, TD_SPEC_KEYS_MAX);
    return count;
}

const struct td_spec_key *td_spec_table_key(const struct td_spec_table *table, size_t i,
                                            unsigned *kinds) {
    for (int s = 0; s < table->section_count; s++) {
        const struct td_spec_section *section = table->sections[s];
        if (i < section->count) {
            *kinds = section->kinds;
            return &section->keys[i];
        }
        i -= section->count;
    }
    return NULL;
}

const struct td_spec_key *td_spec_table_find(const struct td_spec_table *table, const char *name,
                                             unsigned kinds, size_t *index) {
    size_t number = 0;
    for (int s = 0; s < table->section_count; s++) {
        const struct td_spec_section *section = table->sections[s];
        for (size_t i = 0; i < section->count && (section->kinds & kinds); i++) {
            if (strcmp(section->keys[i].name, name) == 0) {
                if (index) {
                    *index = number + i;
                }
                return &section->keys[i];
            }
        }
        number += section->count;
    }
    return NULL;
}

bool td_spec_table_is_section(const struct td_spec_table *table, const char *name, unsigned kinds) {
    size_t n = strlen(name);
    for (int s = 0; s < table->section_count; s++) {
        const struct td_spec_section *section = table->sections[s];
        for (size_t i = 0; i < section->count && (section->kinds & kinds); i++) {
            const char *key = section->keys[i].name;
            if (strncmp(key, name, n) == 0 && key[n] == '.') {
                return true;
            }
        }
    }
    return false;
}

const struct td_spec_section *td_spec_section(int i) {
    td_assert(i >= 0 && i < TD_SPEC_SECTIONS);
    return job_sections[i];
}

size_t td_spec_key_count(void) {
    return td_spec_table_count(&td_spec_jobs);
}

const struct td_spec_key *td_spec_key(size_t i, unsigned *kinds) {
    return td_spec_table_key(&td_spec_jobs, i, kinds);
}

const struct td_spec_key *td_spec_find(const char *name, unsigned kinds, size_t *index) {
    return td_spec_table_find(&td_spec_jobs, name, kinds, index);
}

bool td_spec_is_section(const char *name, unsigned kinds) {
    return td_spec_table_is_section(&td_spec_jobs, name, kinds);
}

bool td_spec_nearest(const char *name, unsigned kinds, struct td_buf *out) {
    return td_spec_table_nearest(&td_spec_jobs, name, kinds, out);
}

int td_spec_word(const char *words, const char *word) {
    size_t n = strlen(word);
    for (int i = 0; words && *words; i++) {
        size_t len = strcspn(words, "|");
        if (len == n && memcmp(words, word, n) == 0) {
            return i;
        }
        words += len + (words[len] == '|');
    }
    return -1;
}

void td_spec_print_words(const char *words, struct td_buf *out) {
    while (words && *words) {
        size_t len = strcspn(words, "|");
        td_buf_put(out, words, len);
        words += len;
        if (*words) {
            td_buf_puts(out, ", ");
            words++;
        }
    }
}

static void describe_range(const struct td_spec_key *key, struct td_buf *out) {
    if (key->min == 0 && key->max == 0) {
        return;
    }
    bool open_end = key->max >= (key->type == TD_SPEC_INT ? 1e18 : 1e9);
    if (key->above) {
        td_buf_printf(out, " above %.15g", key->min);
        if (!open_end) {
            td_buf_printf(out, " and at most %.15g", key->max);
        }
    } else if (open_end) {
        td_buf_printf(out, " of at least %.15g", key->min);
    } else {
        td_buf_printf(out, " from %.15g to %.15g", key->min, key->max);
    }
}

void td_spec_describe_type(const struct td_spec_key *key, struct td_buf *out) {
    static const char *const names[TD_SPEC_TYPE_COUNT] = {
        [TD_SPEC_INT] = "an integer",
        [TD_SPEC_FLOAT] = "a number",
        [TD_SPEC_BOOL] = "true or false",
        [TD_SPEC_STRING] = "a string",
        [TD_SPEC_ENUM] = "one of ",
        [TD_SPEC_STRINGS] = "a string or a list of strings",
        [TD_SPEC_PAIR] = "a list of two numbers, each from 0 to below 1",
        [TD_SPEC_REWARDS] = "a list of {data_source, grader, pattern}",
        [TD_SPEC_ANY] = "any value",
    };
    td_buf_puts(out, names[key->type]);
    if (key->type == TD_SPEC_INT || key->type == TD_SPEC_FLOAT) {
        describe_range(key, out);
    } else if (key->type == TD_SPEC_STRINGS && key->values) {
        td_buf_puts(out, " out of ");
    }
    td_spec_print_words(key->values, out);
    if (key->nullable) {
        td_buf_puts(out, ", or null");
    }
}
