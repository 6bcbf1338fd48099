// Reading the files of jobs that are being submitted: settings, tokenizer, rows, on the work queue.
#include <string.h>

#include "controllers/common/member_int.h"
#include "lib/base/mem.h"

struct read {
    struct td_member *m;
    size_t at;
};

static void release(struct td_index_task *t) {
    td_free(t->request_id);
    td_buf_fini(&t->spec);
    td_free(t->error);
    *t = (struct td_index_task){0};
}

static void run_read(void *user) {
    struct read *r = user;
    struct td_index_task *t = &r->m->index[r->at];
    struct td_job_spec *spec = NULL;
    struct td_job_data *data = NULL;
    struct td_err err;
    enum td_rc rc = td_job_spec_decode(t->spec.data, t->spec.len, &spec, &err);
    rc = rc == TD_OK ? td_job_data_load(spec, &data, &err) : rc;
    if (rc == TD_OK) {
        t->index = data->index;
    } else {
        t->error = td_strdup(err.msg);
    }
    td_job_data_free(data);
    td_job_spec_free(spec);
}

static void end_read(void *user) {
    struct read *r = user;
    struct td_index_task *t = &r->m->index[r->at];
    t->running = false;
    t->done = true;
    if (t->dropped) {
        release(t);
    } else if (r->m->state != TD_SERVICE_RUNNING) { // else the shell's next report says it
        td_member_send_report(r->m);
    }
    td_free(r);
}

// Another attempt of a request is another task: its settings may be others.
static bool is_of(const struct td_index_task *t, const Tandem__Sync__Index *order) {
    return t->request_id && order->attempt && strcmp(t->request_id, order->request_id) == 0 &&
           t->attempt.term == order->attempt->term && t->attempt.n == order->attempt->n;
}

static bool asked(const Tandem__Sync__Orders *o, const struct td_index_task *t) {
    for (size_t i = 0; i < o->n_index; i++) {
        if (is_of(t, o->index[i])) {
            return true;
        }
    }
    return false;
}

static struct td_index_task *find(struct td_member *m, const Tandem__Sync__Index *order) {
    for (size_t i = 0; i < TD_MEMBER_INDEX_MAX; i++) {
        if (order ? is_of(&m->index[i], order) : !m->index[i].request_id) {
            return &m->index[i];
        }
    }
    return NULL;
}

static void add(struct td_member *m, const Tandem__Sync__Index *order) {
    struct td_index_task *t = find(m, NULL);
    if (!t || !order->attempt) {
        return; // when one of the others is done
    }
    struct read *r = td_alloc(sizeof *r);
    *r = (struct read){m, (size_t)(t - m->index)};
    t->request_id = td_strdup(order->request_id);
    tandem__sync__attempt__init(&t->attempt);
    t->attempt.term = order->attempt->term;
    t->attempt.n = order->attempt->n;
    td_buf_put(&t->spec, order->spec.data, order->spec.len);
    t->running = td_workq_submit(m->load_workq, run_read, end_read, r);
    if (!t->running) {
        release(t);
        td_free(r);
    }
}

void td_index_orders(struct td_member *m, const Tandem__Sync__Orders *orders) {
    for (size_t i = 0; i < TD_MEMBER_INDEX_MAX; i++) {
        struct td_index_task *t = &m->index[i];
        if (t->request_id && !asked(orders, t)) {
            t->dropped = true;
            if (!t->running) {
                release(t);
            }
        }
    }
    for (size_t i = 0; i < orders->n_index; i++) {
        struct td_index_task *t = find(m, orders->index[i]);
        if (t) {
            t->dropped = false;
        } else {
            add(m, orders->index[i]);
        }
    }
}

size_t td_index_report(struct td_member *m, Tandem__Sync__Indexed *room,
                       Tandem__Sync__Indexed **list) {
    size_t n = 0;
    for (size_t i = 0; i < TD_MEMBER_INDEX_MAX; i++) {
        struct td_index_task *t = &m->index[i];
        if (!t->done) {
            continue;
        }
        tandem__sync__indexed__init(&room[n]);
        room[n].request_id = t->request_id;
        room[n].attempt = &t->attempt;
        room[n].index = t->error ? NULL : &t->index;
        room[n].error = t->error ? t->error : "";
        list[n] = &room[n];
        n++;
    }
    return n;
}

void td_index_free(struct td_member *m) {
    for (size_t i = 0; i < TD_MEMBER_INDEX_MAX; i++) {
        release(&m->index[i]);
    }
}
