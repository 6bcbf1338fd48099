// "Did you mean …?": the key a user most likely meant, by edit distance over whole names and over
// last words, so that a good key in the wrong section finds its way. Pure.
#include <string.h>

#include "lib/spec/schema.h"

enum { NAME_MAX_BYTES = 128, FAR = 1 << 20 };

static int least(int a, int b) {
    return a < b ? a : b;
}

// Levenshtein distance; both shorter than NAME_MAX_BYTES.
static int distance(const char *a, size_t n, const char *b, size_t m) {
    int row[NAME_MAX_BYTES + 1];
    for (size_t k = 0; k <= m; k++) {
        row[k] = (int)k;
    }
    for (size_t i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t k = 1; k <= m; k++) {
            int change = diagonal + (a[i - 1] != b[k - 1]);
            diagonal = row[k];
            row[k] = least(change, least(row[k], row[k - 1]) + 1);
        }
    }
    return row[m];
}

static const char *last_word(const char *name, size_t n, size_t *len) {
    size_t start = n;
    while (start > 0 && name[start - 1] != '.') {
        start--;
    }
    *len = n - start;
    return name + start;
}

// Distance, where the lengths do not already say that it is more than bound; FAR there.
static int near_distance(const char *a, size_t n, const char *b, size_t m, int bound) {
    int gap = n > m ? (int)(n - m) : (int)(m - n);
    int d = gap <= bound ? distance(a, n, b, m) : FAR;
    return d <= bound ? d : FAR;
}

// Small is near; FAR: not worth a word.
static int score(const char *name, const char *candidate, size_t m) {
    size_t n = strlen(name), n_last, m_last;
    const char *last = last_word(name, n, &n_last), *other = last_word(candidate, m, &m_last);
    int whole = near_distance(name, n, candidate, m, 2 + (int)n / 6);
    // The words of short keys (n, lr, path) are near to everything: they must be equal.
    int words = near_distance(last, n_last, other, m_last, (int)n_last / 4);
    int best = whole < FAR ? 8 * whole : FAR;
    return words < FAR ? least(best, 12 + 16 * words + distance(name, n, candidate, m)) : best;
}

bool td_spec_table_nearest(const struct td_spec_table *table, const char *name, unsigned kinds,
                           struct td_buf *out) {
    const char *best = NULL;
    size_t best_len = 0;
    int best_score = FAR;
    size_t n = strlen(name);
    if (n == 0 || n >= NAME_MAX_BYTES) {
        return false;
    }
    for (size_t i = 0; i < td_spec_table_count(table); i++) {
        unsigned has;
        const struct td_spec_key *key = td_spec_table_key(table, i, &has);
        for (size_t m = 0; (has & kinds) && m < NAME_MAX_BYTES; m++) {
            if (key->name[m] != '.' && key->name[m] != '\0') {
                continue;
            }
            int s = score(name, key->name, m);
            // Of keys that are about as near, the one that acts.
            s += s < FAR && key->cls != TD_SPEC_DONE && key->name[m] == '\0' ? 24 : 0;
            if (s < best_score) {
                best_score = s;
                best = key->name;
                best_len = m;
            }
            if (key->name[m] == '\0') {
                break;
            }
        }
    }
    td_buf_put(out, best ? best : "", best_len);
    return best != NULL;
}
