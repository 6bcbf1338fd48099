// One line of a data set: JSON → checked members → ids. See dataset.h for the schema.
#include <string.h>

#include "lib/base/crc.h"
#include "lib/base/rng.h"
#include "lib/text/dataset_int.h"
#include "lib/text/json.h"

static enum td_rc read_message(const json_t *from, struct td_message *out, struct td_err *err) {
    static const char *const keys[] = {"role", "content", NULL};
    if (!json_is_object(from)) {
        return td_fail(err, TD_EINVAL, "must be an object with role and content, is %s",
                       td_json_kind(from));
    }
    enum td_rc rc = td_json_string(from, "role", &out->role, err);
    if (rc == TD_OK) {
        rc = td_json_string(from, "content", &out->content, err);
    }
    return rc == TD_OK ? td_json_only(from, keys, err) : rc;
}

// A string is one user message. out->messages is the caller's to free, on failure too; its strings
// are the JSON's.
static enum td_rc read_messages(const json_t *from, struct td_dialog *out, struct td_err *err) {
    size_t n = json_is_string(from) ? 1 : json_array_size(from);
    if (n == 0) {
        return td_fail(err, TD_EINVAL, "must be a string or a list of {role, content}, is %s",
                       json_is_array(from) ? "an empty list" : td_json_kind(from));
    }
    if (n > TD_DATASET_MESSAGES_MAX) {
        return td_fail(err, TD_ELIMIT, "%zu messages; at most %d", n, TD_DATASET_MESSAGES_MAX);
    }
    struct td_message *messages = td_alloc_array(n, sizeof *messages);
    out->messages = messages;
    out->n = n;
    if (json_is_string(from)) {
        messages[0] = (struct td_message){"user", json_string_value(from)};
        return TD_OK;
    }
    for (size_t i = 0; i < n; i++) {
        enum td_rc rc = read_message(json_array_get(from, i), &messages[i], err);
        if (rc != TD_OK) {
            td_err_in(err, "[%zu]", i);
            return rc;
        }
    }
    return TD_OK;
}

// Renders and encodes the messages under key. A plain string needs no template, so that one works
// with every model folder.
static enum td_rc encode_messages(struct td_row_reader *r, const json_t *row, const char *key,
                                  bool open_turn, struct td_err *err) {
    const json_t *from = json_object_get(row, key);
    enum td_template t = r->c->template;
    struct td_dialog dialog = {.open_turn = open_turn};
    enum td_rc rc = read_messages(from, &dialog, err);
    bool renders = json_is_array(from) || t != TD_TEMPLATE_PLAIN;
    if (rc == TD_OK && renders && !r->checked) {
        rc = td_template_check(t, r->tk, err);
        r->checked = rc == TD_OK;
    }
    if (rc == TD_OK) {
        rc = td_template_encode(t, r->tk, &dialog, &r->ds->ids, r->ds->sft ? &r->ds->masks : NULL,
                                err);
    }
    td_free((void *)dialog.messages);
    if (rc != TD_OK) {
        td_err_in(err, "%s", key);
    }
    return rc;
}

static enum td_rc refuse_media(const json_t *row, struct td_err *err) {
    static const char *const keys[] = {"images", "videos"};
    for (size_t i = 0; i < 2; i++) {
        if (json_array_size(json_object_get(row, keys[i])) > 0) {
            return td_fail(err, TD_EUNSUPPORTED, "%s: only text is supported; remove the row",
                           keys[i]);
        }
    }
    return TD_OK;
}

static const char *keep_json(struct td_dataset *ds, const json_t *value) {
    struct td_buf text = {0};
    td_json_put(value, &text);
    const char *kept = td_arena_strndup(ds->arena, td_buf_str(&text), text.len);
    td_buf_fini(&text);
    return kept;
}

static enum td_rc read_reward(struct td_row_reader *r, const json_t *row,
                              struct td_row_entry *entry, struct td_err *err) {
    const json_t *reward = json_object_get(row, "reward_model");
    if (!json_is_object(reward)) {
        return td_fail(err, TD_EINVAL, "must be an object with ground_truth, is %s",
                       td_json_kind(reward));
    }
    const json_t *style = json_object_get(reward, "style"),
                 *truth = json_object_get(reward, "ground_truth");
    if (json_is_string(style) && strcmp(json_string_value(style), "rule") != 0) {
        return td_fail(err, TD_EUNSUPPORTED, "style: '%s' is not supported; use rule",
                       json_string_value(style));
    }
    if (json_is_string(truth)) {
        entry->ground_truth =
            td_arena_strndup(r->ds->arena, json_string_value(truth), json_string_length(truth));
    } else if (json_is_number(truth)) {
        entry->ground_truth = keep_json(r->ds, truth);
    } else {
        return td_fail(err, TD_EINVAL, "ground_truth: must be a string or a number, is %s",
                       td_json_kind(truth));
    }
    return TD_OK;
}

static enum td_rc read_prompt_row(struct td_row_reader *r, const json_t *row,
                                  struct td_row_entry *entry, struct td_err *err) {
    const char *source;
    enum td_rc rc = td_json_string(row, r->c->reward_fn_key, &source, err);
    if (rc != TD_OK) {
        return rc;
    }
    entry->data_source = td_arena_strndup(r->ds->arena, source, strlen(source));
    rc = read_reward(r, row, entry, err);
    if (rc != TD_OK) {
        td_err_in(err, "reward_model");
        return rc;
    }
    const json_t *extra = json_object_get(row, "extra_info");
    if (extra != NULL && !json_is_null(extra)) {
        entry->extra_info = keep_json(r->ds, extra);
    }
    rc = encode_messages(r, row, r->c->prompt_key, true, err);
    if (rc == TD_OK && r->ds->ids.n == entry->first) {
        return td_fail(err, TD_EINVAL, "%s: is empty; there is nothing to answer",
                       r->c->prompt_key);
    }
    return rc;
}

static enum td_rc read_sft_row(struct td_row_reader *r, const json_t *row, struct td_err *err) {
    if (json_object_get(row, r->c->messages_key) != NULL) {
        return encode_messages(r, row, r->c->messages_key, false, err);
    }
    const char *response;
    enum td_rc rc = td_json_string(row, r->c->response_key, &response, err);
    if (rc != TD_OK) {
        return rc;
    }
    rc = encode_messages(r, row, r->c->prompt_key, true, err);
    if (rc != TD_OK) {
        return rc;
    }
    // "plain" ends an answer as verl's SFTDataset does for every template: response, eos
    const struct td_message answer = {"assistant", response};
    const struct td_dialog dialog = {&answer, 1, false};
    rc = td_template_encode(TD_TEMPLATE_PLAIN, r->tk, &dialog, &r->ds->ids, &r->ds->masks, err);
    if (rc != TD_OK) {
        td_err_in(err, "%s", r->c->response_key);
    }
    return rc;
}

// Keeps the part of the row's n elements of size bytes at v that verl's postprocess_data keeps.
static void cut(void *v, size_t size, size_t n, size_t keep, enum td_truncation how) {
    size_t head = how == TD_TRUNCATE_LEFT ? 0 : how == TD_TRUNCATE_RIGHT ? keep : keep / 2;
    char *bytes = v;
    memmove(bytes + head * size, bytes + (n - (keep - head)) * size, (keep - head) * size);
}

static enum td_rc fit_length(struct td_row_reader *r, struct td_row_entry *entry, bool *dropped,
                             struct td_err *err) {
    struct td_dataset *ds = r->ds;
    size_t n = ds->ids.n - entry->first, keep = (size_t)r->c->max_length;
    if (n <= keep) {
        return TD_OK;
    }
    if (r->c->filter_overlong_prompts) {
        *dropped = true;
        return TD_OK;
    }
    if (r->c->truncation == TD_TRUNCATE_ERROR) {
        return td_fail(err, TD_EINVAL,
                       "%zu tokens, and at most %zu are allowed; raise data.%s, or set "
                       "data.truncation or data.filter_overlong_prompts",
                       n, keep, ds->sft ? "max_length" : "max_prompt_length");
    }
    cut(ds->ids.v + entry->first, sizeof *ds->ids.v, n, keep, r->c->truncation);
    ds->ids.n = entry->first + keep;
    if (ds->sft) {
        cut(ds->masks.data + entry->first, 1, n, keep, r->c->truncation);
        ds->masks.len = entry->first + keep;
    }
    return TD_OK;
}

// Nothing predicts a sequence's first token, so it is never trained.
static enum td_rc check_trained(struct td_dataset *ds, const struct td_row_entry *entry,
                                struct td_err *err) {
    uint8_t *mask = ds->masks.data + entry->first;
    mask[0] = 0;
    if (memchr(mask, 1, ds->masks.len - entry->first) == NULL) {
        return td_fail(err, TD_EINVAL,
                       "no token of an answer is left to train on; remove the row "
                       "or raise data.max_length");
    }
    return TD_OK;
}

static uint64_t fold_text(uint64_t hash, const void *bytes, size_t n) {
    return td_digest64(td_hash_u64(hash, n), bytes, n);
}

static uint64_t digest_of(const struct td_dataset *ds, const struct td_row_entry *entry) {
    uint64_t hash = fold_text(0, ds->ids.v + entry->first, entry->n * sizeof *ds->ids.v);
    if (ds->sft) {
        return fold_text(hash, ds->masks.data + entry->first, entry->n);
    }
    hash = fold_text(hash, entry->data_source, strlen(entry->data_source));
    return fold_text(hash, entry->ground_truth, strlen(entry->ground_truth));
}

static enum td_rc read_members(struct td_row_reader *r, const json_t *row,
                               struct td_row_entry *entry, bool *dropped, struct td_err *err) {
    struct td_dataset *ds = r->ds;
    enum td_rc rc = refuse_media(row, err);
    if (rc == TD_OK) {
        rc = ds->sft ? read_sft_row(r, row, err) : read_prompt_row(r, row, entry, err);
    }
    if (rc == TD_OK) {
        rc = fit_length(r, entry, dropped, err);
    }
    if (rc == TD_OK && ds->sft && !*dropped) {
        rc = check_trained(ds, entry, err);
    }
    return rc;
}

enum td_rc td_dataset_read_row(struct td_row_reader *r, const char *line, size_t n, uint32_t file,
                               uint64_t number, struct td_err *err) {
    struct td_dataset *ds = r->ds;
    struct td_row_entry entry = {.first = ds->ids.n, .file = file, .line = number};
    bool dropped = false;
    json_t *row;
    enum td_rc rc = td_json_parse(line, n, 0, &row, err);
    if (rc != TD_OK) {
        return rc;
    }
    if (json_is_object(row)) {
        rc = read_members(r, row, &entry, &dropped, err);
    } else {
        rc = td_fail(err, TD_EINVAL, "must be an object, is %s; write one object a line",
                     td_json_kind(row));
    }
    json_decref(row);
    if (rc != TD_OK) {
        return rc;
    }
    if (dropped) {
        ds->ids.n = entry.first;
        ds->masks.len = ds->sft ? entry.first : 0;
        ds->filtered++;
        return TD_OK;
    }
    entry.n = ds->ids.n - entry.first;
    entry.digest = digest_of(ds, &entry);
    TD_GROW(ds->rows, ds->row_cap, ds->row_count + 1);
    ds->rows[ds->row_count++] = entry;
    return TD_OK;
}
