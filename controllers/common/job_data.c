// What a job's settings name on this machine: see job_data.h.
#include "controllers/common/job_data.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <string.h>

#include "lib/base/crc.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"

enum { CONFIG_BYTES_MAX = 16 << 20 };

static enum td_rc load_tokenizer(struct td_job_data *d, struct td_err *err) {
    enum td_rc rc = td_tokenizer_load(d->spec->model.path, &d->tokenizer, err);
    if (rc != TD_OK) {
        return rc;
    }
    size_t n = (size_t)td_tokenizer_size(d->tokenizer);
    td_tokenizer_known_ids(d->tokenizer, td_buf_room(&d->known_ids, n), n);
    d->known_ids.len = n;
    return TD_OK;
}

static void add_stop_id(struct td_job_data *d, int64_t id) {
    for (size_t i = 0; i < d->stop_ids.n; i++) {
        if (d->stop_ids.v[i] == id) {
            return;
        }
    }
    if (id >= 0 && id < INT32_MAX) {
        td_ids_put(&d->stop_ids, (int32_t)id);
    }
}

static void add_stop_ids_of(struct td_job_data *d, const json_t *root) {
    const json_t *eos = json_object_get(root, "eos_token_id");
    if (json_is_integer(eos)) {
        add_stop_id(d, json_integer_value(eos));
    }
    for (size_t i = 0; i < json_array_size(eos); i++) {
        const json_t *id = json_array_get(eos, i);
        add_stop_id(d, json_is_integer(id) ? json_integer_value(id) : -1);
    }
}

static enum td_rc read_json(const char *dir, const char *name, json_t **out, struct td_err *err) {
    char *path = td_asprintf("%s/%s", dir, name);
    struct td_buf text = {0};
    enum td_rc rc = td_file_read(path, CONFIG_BYTES_MAX, &text, err);
    json_error_t at;
    if (rc == TD_OK) {
        *out = json_loadb(td_buf_str(&text), text.len, JSON_REJECT_DUPLICATES, &at);
        if (!*out) {
            rc = td_fail(err, TD_EINVAL, "%s:%d:%d: %s", path, at.line, at.column, at.text);
        }
    }
    td_buf_fini(&text);
    td_free(path);
    return rc;
}

// Stop ids, and whether prompts and answers fit the model.
static enum td_rc check_model(struct td_job_data *d, struct td_err *err) {
    const char *dir = d->spec->model.path;
    json_t *config = NULL, *generation = NULL;
    enum td_rc rc = read_json(dir, "config.json", &config, err);
    if (rc != TD_OK) {
        return rc;
    }
    add_stop_ids_of(d, config);
    rc = read_json(dir, "generation_config.json", &generation, err);
    if (rc != TD_OK && rc != TD_ENOENT) {
        json_decref(config);
        return rc;
    }
    rc = TD_OK;
    add_stop_ids_of(d, generation);
    add_stop_id(d, td_tokenizer_eos(d->tokenizer));
    int64_t positions = json_integer_value(json_object_get(config, "max_position_embeddings"));
    int64_t vocab = json_integer_value(json_object_get(config, "vocab_size"));
    const struct td_spec_data *s = &d->spec->data;
    int64_t longest = d->spec->tandem.kind == TD_JOB_SFT
                          ? s->max_length
                          : s->max_prompt_length + s->max_response_length;
    if (positions > 0 && longest > positions) {
        rc = td_fail(err, TD_EINVAL,
                     "%s: sequences may have %lld tokens, the model has %lld positions "
                     "(max_position_embeddings of %s/config.json): lower it",
                     d->spec->tandem.kind == TD_JOB_SFT
                         ? "data.max_length"
                         : "data.max_prompt_length + data.max_response_length",
                     (long long)longest, (long long)positions, dir);
    } else if (vocab > 0 && td_tokenizer_size(d->tokenizer) > vocab) {
        rc = td_fail(err, TD_EINVAL,
                     "%s/tokenizer.json has ids up to %d, config.json's vocab_size is %lld", dir,
                     td_tokenizer_size(d->tokenizer) - 1, (long long)vocab);
    } else if (d->stop_ids.n == 0) {
        rc = td_fail(err, TD_EINVAL,
                     "%s: no end-of-text token (eos_token_id in config.json or "
                     "generation_config.json, eos_token in tokenizer_config.json)",
                     dir);
    }
    json_decref(config);
    json_decref(generation);
    return rc;
}

static enum td_rc load_set(struct td_job_data *d, bool validation, struct td_dataset **out,
                           struct td_err *err) {
    const struct td_spec_data *s = &d->spec->data;
    bool sft = d->spec->tandem.kind == TD_JOB_SFT;
    const struct td_spec_strings *files = validation ? &s->val_files : &s->train_files;
    struct td_dataset_config c = {
        .kind = sft ? TD_DATASET_SFT : TD_DATASET_PROMPTS,
        .files = files->items,
        .file_count = (size_t)files->count,
        .prompt_key = s->prompt_key,
        .response_key = s->response_key,
        .messages_key = s->messages_key,
        .reward_fn_key = s->reward_fn_key,
        .template = d->spec->tandem.chat_template == TD_CHAT_CHATML ? TD_TEMPLATE_CHATML
                                                                    : TD_TEMPLATE_PLAIN,
        .max_length = sft ? s->max_length : s->max_prompt_length,
        .filter_overlong_prompts = s->filter_overlong_prompts,
        .truncation = (enum td_truncation)s->truncation,
        .max_samples = validation ? s->val_max_samples : s->train_max_samples,
        .shuffle = s->shuffle && !validation,
        .seed = (uint64_t)s->seed,
    };
    return td_dataset_load(&c, d->tokenizer, out, err);
}

static enum td_rc check_graders(const struct td_job_data *d, const struct td_dataset *set,
                                struct td_err *err) {
    enum td_rc rc = TD_OK;
    for (uint64_t i = 0; rc == TD_OK && i < td_dataset_rows(set); i++) {
        struct td_row row;
        td_dataset_row(set, i, &row);
        rc = td_rewards_check(d->rewards, row.data_source, err);
        if (rc != TD_OK) {
            (void)td_err_in(err, "%s:%llu", row.file, (unsigned long long)row.line);
            rc = err->code = TD_EINVAL; // not a file that is missing, but a setting
        }
    }
    return rc;
}

static enum td_rc load_rewards(struct td_job_data *d, struct td_err *err) {
    const struct td_spec_tandem *t = &d->spec->tandem;
    struct td_reward_rule *rules = td_alloc_array((size_t)t->reward_count + 1, sizeof *rules);
    for (int i = 0; i < t->reward_count; i++) {
        rules[i] = (struct td_reward_rule){t->rewards[i].data_source, t->rewards[i].grader,
                                           t->rewards[i].pattern};
    }
    enum td_rc rc = td_rewards_new(rules, (size_t)t->reward_count, &d->rewards, err);
    td_free(rules);
    if (rc == TD_OK) {
        rc = check_graders(d, d->train, err);
    }
    return rc == TD_OK && d->val ? check_graders(d, d->val, err) : rc;
}

static bool is_shard(const char *name) {
    static const char prefix[] = "model-", suffix[] = ".safetensors";
    size_t n = strlen(name);
    return strncmp(name, prefix, sizeof prefix - 1) == 0 && n > sizeof suffix &&
           strcmp(name + n - (sizeof suffix - 1), suffix) == 0;
}

// A sum, so that the folder's order does not matter.
static enum td_rc shards_digest(const char *folder, uint64_t *sum, struct td_err *err) {
    DIR *dir = opendir(folder);
    if (!dir) {
        return td_fail_errno(err, errno, "%s", folder);
    }
    enum td_rc rc = TD_OK;
    for (struct dirent *e; rc == TD_OK && (e = readdir(dir));) {
        if (is_shard(e->d_name)) {
            char *path = td_asprintf("%s/%s", folder, e->d_name);
            uint64_t digest = 0, size = 0;
            rc = td_file_digest(path, &digest, &size, err);
            *sum += td_hash_u64(td_digest64(0, e->d_name, strlen(e->d_name)), digest);
            td_free(path);
        }
    }
    closedir(dir);
    return rc;
}

// Digest of what the initial weights come from: the folder's files, or the seed and config.json.
static enum td_rc model_digest(const struct td_job_data *d, uint64_t *out, struct td_err *err) {
    static const char *const names[] = {"config.json", "model.safetensors",
                                        "model.safetensors.index.json"};
    bool random = d->spec->tandem.init == TD_INIT_RANDOM;
    uint64_t hash = random ? td_hash_u64(1, (uint64_t)d->spec->tandem.seed) : 2;
    for (size_t i = 0; i < (random ? 1u : 3u); i++) {
        char *path = td_asprintf("%s/%s", d->spec->model.path, names[i]);
        uint64_t digest = 0, size = 0;
        enum td_rc rc = TD_OK;
        if (i == 0 || td_file_exists(path)) {
            rc = td_file_digest(path, &digest, &size, err);
        }
        td_free(path);
        if (rc != TD_OK) {
            return rc;
        }
        hash = td_hash_u64(td_hash_u64(hash, digest), size);
    }
    uint64_t shards = 0;
    enum td_rc rc = random ? TD_OK : shards_digest(d->spec->model.path, &shards, err);
    *out = shards ? td_hash_u64(hash, shards) : hash;
    return rc;
}

static enum td_rc fill_index(struct td_job_data *d, struct td_err *err) {
    struct td_data_index train, val = {0};
    td_dataset_index(d->train, &train);
    if (d->val) {
        td_dataset_index(d->val, &val);
    }
    tandem__journal__data_index__init(&d->index);
    d->index.rows = train.rows;
    d->index.val_rows = td_job_data_val_rows(d);
    d->index.data_digest = td_hash_u64(td_hash_u64(train.data_digest, val.rows), val.data_digest);
    d->index.tokenizer_digest = train.tokenizer_digest;
    d->index.template_digest = train.template_digest;
    return model_digest(d, &d->index.model_digest, err);
}

enum td_rc td_job_data_load(const struct td_job_spec *spec, struct td_job_data **out,
                            struct td_err *err) {
    struct td_job_data *d = td_alloc(sizeof *d);
    d->spec = spec;
    enum td_rc rc = load_tokenizer(d, err);
    if (rc == TD_OK) {
        rc = check_model(d, err);
    }
    if (rc == TD_OK) {
        rc = load_set(d, false, &d->train, err);
    }
    if (rc == TD_OK && spec->tandem.kind == TD_JOB_GRPO && spec->data.val_files.count > 0) {
        rc = load_set(d, true, &d->val, err);
    }
    if (rc == TD_OK && spec->tandem.kind == TD_JOB_GRPO) {
        rc = load_rewards(d, err);
    }
    if (rc == TD_OK) {
        rc = td_job_schedule(spec, td_dataset_rows(d->train), &d->schedule, err);
    }
    if (rc == TD_OK) {
        rc = fill_index(d, err);
    }
    if (rc != TD_OK) {
        td_job_data_free(d);
        return rc;
    }
    *out = d;
    return TD_OK;
}

void td_job_data_free(struct td_job_data *d) {
    if (d) {
        td_rewards_free(d->rewards);
        td_dataset_free(d->train);
        td_dataset_free(d->val);
        td_tokenizer_free(d->tokenizer);
        td_buf_fini(&d->known_ids);
        td_ids_fini(&d->stop_ids);
        td_free(d);
    }
}

uint64_t td_job_data_val_rows(const struct td_job_data *d) {
    return d->val ? td_dataset_rows(d->val) : 0;
}
