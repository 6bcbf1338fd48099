// Rule rewards: which grader scores a data source, and the graders. Compiled once at job start,
// read-only afterwards: scoring may be called from any thread. Knows no job, no token and no clock.
//
// exact   1 when response and ground truth are equal after ASCII white space is cut off both ends.
// regex   PCRE2 (UTF, Unicode classes). With a capturing group: 1 when the first group of the last
//         match equals the ground truth (white space cut off both). Without: 1 when the pattern
//         matches anywhere. A byte that is no UTF-8 matches nothing.
// gsm8k   verl's strict gsm8k score: in the last 300 code points, the last "#### number", commas
//         removed, must equal the ground truth as text ("42." and "42.0" are not "42").
#ifndef TD_REWARD_REWARD_H
#define TD_REWARD_REWARD_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/err.h"

enum { TD_REWARD_RULES_MAX = 256 };

// One line of the job's tandem.rewards; strings are borrowed for the call.
struct td_reward_rule {
    const char *data_source, *grader;
    const char *pattern; // regex only, else NULL
};

struct td_rewards;

// Checks and compiles rules[n]. "openai/gsm8k" is graded by gsm8k unless a rule says otherwise.
// TD_EINVAL: an unknown grader, a data source twice, a pattern that is missing, superfluous or does
// not compile (the message has pattern and offset); TD_ELIMIT: too many rules. The message begins
// with the key, "tandem.rewards[i]...".
enum td_rc td_rewards_new(const struct td_reward_rule *rules, size_t n, struct td_rewards **out,
                          struct td_err *err) TD_MUST_CHECK;
void td_rewards_free(struct td_rewards *rewards);

// TD_OK when data_source has a grader; else TD_ENOENT naming it and the known ones.
enum td_rc td_rewards_check(const struct td_rewards *rewards, const char *data_source,
                            struct td_err *err) TD_MUST_CHECK;

// What is scored; borrowed for the call.
struct td_response {
    const char *data_source, *ground_truth;
    const char *text; // the decoded response, n bytes
    size_t n;
};

// TD_ENOENT: unknown data source; TD_ELIMIT: the pattern needs more backtracking than the match
// limit allows on this text. *score is untouched on failure.
enum td_rc td_rewards_score(const struct td_rewards *rewards, const struct td_response *response,
                            double *score, struct td_err *err) TD_MUST_CHECK;

#endif
