// A work queue: see workq.h. The mutex guards the list of waiting jobs; results go to the loop
// through a mailbox that has room for every job.
#include "lib/io/workq.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "lib/io/mailbox.h"

struct job {
    struct job *next;
    struct td_workq *workq;
    td_loop_fn *run, *done;
    void *user;
};

struct td_workq {
    struct td_loop *loop;
    struct td_mailbox *mailbox;
    size_t jobs_max, jobs; // loop thread: queued, running or waiting for done
    bool finishing;        // loop thread
    pthread_t threads[TD_WORKQ_THREADS_MAX];
    unsigned thread_count;
    pthread_mutex_t mutex;
    pthread_cond_t more;
    struct job *head, **tail; // guarded
    bool stopping;            // guarded
};

static void finish(void *user) {
    struct job *job = user;
    struct td_workq *workq = job->workq;
    workq->jobs--;
    workq->finishing = true;
    if (job->done) {
        job->done(job->user);
    }
    workq->finishing = false;
    td_free(job);
}

static struct job *take(struct td_workq *workq) {
    pthread_mutex_lock(&workq->mutex);
    while (!workq->head && !workq->stopping) {
        pthread_cond_wait(&workq->more, &workq->mutex);
    }
    struct job *job = workq->head;
    if (job) {
        workq->head = job->next;
        if (!job->next) {
            workq->tail = &workq->head;
        }
    }
    pthread_mutex_unlock(&workq->mutex);
    return job;
}

static void *work(void *user) {
    struct td_workq *workq = user;
    struct job *job;
    while ((job = take(workq))) {
        job->run(job->user);
        bool posted = td_mailbox_post(workq->mailbox, finish, job);
        td_assert(posted);
    }
    return NULL;
}

// Signals belong to the loop: its thread is the only one that takes them.
static int start_thread(struct td_workq *workq, const char *name) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&workq->threads[workq->thread_count], NULL, work, workq);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc == 0) {
        pthread_setname_np(workq->threads[workq->thread_count++], name);
    }
    return rc;
}

enum td_rc td_workq_new(struct td_loop *loop, const char *name, unsigned threads, size_t jobs_max,
                        struct td_workq **out, struct td_err *err) {
    td_assert(threads >= 1 && threads <= TD_WORKQ_THREADS_MAX);
    td_assert_op(strlen(name), <=, 15);
    struct td_workq *workq = td_alloc(sizeof *workq);
    workq->loop = loop;
    workq->jobs_max = jobs_max;
    workq->tail = &workq->head;
    if (td_mailbox_new(loop, jobs_max, &workq->mailbox, err) != TD_OK) {
        td_free(workq);
        return td_err_in(err, "work queue %s", name);
    }
    pthread_mutex_init(&workq->mutex, NULL);
    pthread_cond_init(&workq->more, NULL);
    for (unsigned i = 0; i < threads; i++) {
        int errnum = start_thread(workq, name);
        if (errnum != 0) {
            td_workq_free(workq);
            return td_fail_errno(err, errnum, "cannot start a thread for work queue %s", name);
        }
    }
    *out = workq;
    return TD_OK;
}

bool td_workq_submit(struct td_workq *workq, td_loop_fn *run, td_loop_fn *done, void *user) {
    td_loop_assert(workq->loop);
    // stopping is written on this thread only
    if (workq->jobs == workq->jobs_max || workq->stopping) {
        return false;
    }
    workq->jobs++;
    struct job *job = td_alloc(sizeof *job);
    *job = (struct job){.workq = workq, .run = run, .done = done, .user = user};
    pthread_mutex_lock(&workq->mutex);
    *workq->tail = job;
    workq->tail = &job->next;
    pthread_cond_signal(&workq->more);
    pthread_mutex_unlock(&workq->mutex);
    return true;
}

void td_workq_free(struct td_workq *workq) {
    if (!workq) {
        return;
    }
    td_loop_assert(workq->loop);
    td_assert(!workq->finishing);
    pthread_mutex_lock(&workq->mutex);
    workq->stopping = true;
    pthread_cond_broadcast(&workq->more);
    pthread_mutex_unlock(&workq->mutex);
    for (unsigned i = 0; i < workq->thread_count; i++) {
        pthread_join(workq->threads[i], NULL);
    }
    td_mailbox_free(workq->mailbox);
    pthread_cond_destroy(&workq->more);
    pthread_mutex_destroy(&workq->mutex);
    td_free(workq);
}
