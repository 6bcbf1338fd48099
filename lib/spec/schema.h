// Schema tables: every key a file may have, once per kind of file. That of job files drives
// parsing, checks, help and docs/job-file.md; that of daemons the same and deploy/*.yaml. Data
// only, read-only; any thread.
#ifndef TD_SPEC_SCHEMA_H
#define TD_SPEC_SCHEMA_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/buf.h"
#include "lib/spec/job_spec.h"

enum td_spec_type {
    TD_SPEC_INT,     // int64_t
    TD_SPEC_FLOAT,   // double
    TD_SPEC_BOOL,    // bool
    TD_SPEC_STRING,  // const char *
    TD_SPEC_ENUM,    // an enum: the place in values
    TD_SPEC_STRINGS, // struct td_spec_strings; a single string is a list of one
    TD_SPEC_PAIR,    // double[2]
    TD_SPEC_REWARDS, // tandem.rewards and tandem.reward_count
    TD_SPEC_ANY,     // no field: not looked into
    TD_SPEC_TYPE_COUNT
};

enum td_spec_class {
    TD_SPEC_DONE,      // acts as in verl, or as help says
    TD_SPEC_NO_EFFECT, // accepted, does nothing here, results are the same
    TD_SPEC_REFUSED, // accepted with its neutral value only: to ignore another would change results
};

enum { TD_KINDS_GRPO = 1 << TD_JOB_GRPO, TD_KINDS_SFT = 1 << TD_JOB_SFT };

struct td_spec_key {
    const char *name; // verl's dotted key
    enum td_spec_class cls;
    enum td_spec_type type;
    size_t offset;       // DONE: of its field in the struct of the table
    bool nullable;       // null is a value: NULL, an empty list, TD_SPEC_UNSET
    bool required;       // no default
    bool process;        // not of the job: see struct td_spec_tandem
    bool above;          // min itself is out of range
    bool blank;          // STRING: "" is a value, the same as null
    double min, max;     // of INT and FLOAT, inclusive; both 0: any
    const char *values;  // ENUM: "a|b", in the order of the enum; STRINGS: what an item may be
    const char *known;   // further values that exist elsewhere and are refused by name, "c|d"
    const char *def;     // JSON text; "=key": the value of that key. REFUSED: the neutral value
    const char *verl;    // verl's default where ours differs
    const char *why;     // why ours differs
    const char *ours;    // why this key exists though verl has none
    const char *example; // JSON text for files that show every key, where it is not def; @ in it
                         // stands for the kind's name
    const char *help; // DONE: what it does; NO_EFFECT: why it does nothing; REFUSED: why, and the
                      // way out
};

struct td_spec_section {
    const struct td_spec_key *keys;
    size_t count;
    unsigned kinds; // TD_KINDS_*
};

struct td_spec_table {
    const struct td_spec_section *const *sections;
    int section_count;
    unsigned kinds; // all there are
    // Says that a name which kinds `has` know has no place in a file of another kind.
    void (*print_foreign)(unsigned has, unsigned kind, struct td_buf *out);
    const char *listing; // "`tandem help keys` lists all"
};

// Keys are numbered through all sections of a table.
enum { TD_SPEC_KEYS_MAX = 1024 };
size_t td_spec_table_count(const struct td_spec_table *table);
const struct td_spec_key *td_spec_table_key(const struct td_spec_table *table, size_t i,
                                            unsigned *kinds);
// The key of that name that one of these kinds has, or NULL; *index (may be NULL) is its number.
const struct td_spec_key *td_spec_table_find(const struct td_spec_table *table, const char *name,
                                             unsigned kinds, size_t *index);
// Whether keys of these kinds begin with "name.".
bool td_spec_table_is_section(const struct td_spec_table *table, const char *name, unsigned kinds);
// Appends the key or section of these kinds that name most likely means; false: nothing is near.
bool td_spec_table_nearest(const struct td_spec_table *table, const char *name, unsigned kinds,
                           struct td_buf *out);

// The table of job files in its order: that of canonical bytes. The functions are those above.
enum { TD_SPEC_SECTIONS = 7 };
extern const struct td_spec_table td_spec_jobs;
const struct td_spec_section *td_spec_section(int i);
size_t td_spec_key_count(void);
const struct td_spec_key *td_spec_key(size_t i, unsigned *kinds);
const struct td_spec_key *td_spec_find(const char *name, unsigned kinds, size_t *index);
bool td_spec_is_section(const char *name, unsigned kinds);
bool td_spec_nearest(const char *name, unsigned kinds, struct td_buf *out);

// The table of daemons' settings: kinds are 1 << enum td_daemon_role, fields those of struct
// td_daemon_settings.
extern const struct td_spec_table td_spec_daemons;

// The place of word in "a|b|c", or −1; and the words with commas between them.
int td_spec_word(const char *words, const char *word);
void td_spec_print_words(const char *words, struct td_buf *out);
// "integer", "one of a, b" …: what a value must be, for messages and help.
void td_spec_describe_type(const struct td_spec_key *key, struct td_buf *out);
// Help on one key, a few lines.
void td_spec_print_help(const struct td_spec_key *key, unsigned kinds, struct td_buf *out);
// docs/job-file.md.
void td_spec_print_docs(struct td_buf *out);

#endif
