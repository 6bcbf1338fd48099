// Runs the program tandem with its output to files of the current folder.
#ifndef TD_TESTS_CLI_COMMAND_H
#define TD_TESTS_CLI_COMMAND_H

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "tests/unit/cmocka_all.h"

enum { ARGS_MAX = 12 };

struct run {
    int status; // exit status; −1: a signal ended it
    struct td_buf out, err;
};

static inline void read_back(const char *name, struct td_buf *into) {
    struct td_err err = {0};
    assert_int_equal(td_file_read(name, 1 << 20, into, &err), TD_OK);
}

static inline pid_t command_start_of(const char *program, const char *const *args) {
    char *argv[ARGS_MAX + 2] = {(char *)"tandem"};
    for (int i = 0; args[i]; i++) {
        argv[i + 1] = (char *)args[i];
    }
    pid_t pid = fork();
    if (pid == 0) {
        int out = open("out", O_WRONLY | O_CREAT | O_TRUNC, 0600);
        int err = open("err", O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (dup2(out, 1) == 1 && dup2(err, 2) == 2) {
            execv(program, argv);
        }
        _exit(127);
    }
    return pid;
}

static inline pid_t command_start(const char *const *args) {
    return command_start_of(TD_TEST_TANDEM, args);
}

static inline struct run command_end(pid_t pid) {
    struct run r = {0};
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    r.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    read_back("out", &r.out);
    read_back("err", &r.err);
    return r;
}

static inline struct run run(const char *const *args) {
    return command_end(command_start(args));
}

// A new folder, entered, with a job.yaml in it. dir: "/tmp/...XXXXXX".
static inline int enter_folder(char *dir, const char *job) {
    assert_non_null(mkdtemp(dir));
    assert_int_equal(chdir(dir), 0);
    assert_int_equal(td_file_write("job.yaml", job, strlen(job), NULL), TD_OK);
    return 0;
}

static inline void run_fini(struct run *r) {
    td_buf_fini(&r->out);
    td_buf_fini(&r->err);
}

#endif
