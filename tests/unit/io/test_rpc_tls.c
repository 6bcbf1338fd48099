// TLS and mutual TLS, with certificates made by openssl; skipped where it is not installed.
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "lib/base/file.h"
#include "tests/unit/io/rpc_world.h"

extern char **environ;

struct files {
    char dir[32];
    char *paths[32];
    size_t count;
};

// The path of a file in the folder; lives as long as the folder.
static const char *file_in(struct files *files, const char *name) {
    assert_true(files->count < 32);
    files->paths[files->count] = td_asprintf("%s/%s", files->dir, name);
    return files->paths[files->count++];
}

static int make_files(void **state) {
    struct files *files = td_alloc(sizeof *files);
    snprintf(files->dir, sizeof files->dir, "/tmp/td-tls-XXXXXX");
    assert_non_null(mkdtemp(files->dir));
    char *argv[] = {"sh", TD_TEST_SOURCE_DIR "/tests/unit/io/certificates.sh", files->dir, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    pid_t pid = -1;
    assert_int_equal(posix_spawnp(&pid, "sh", &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    *state = files;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127) {
        print_message("openssl is not installed\n");
        files->dir[0] = '\0';
    } else {
        assert_int_equal(status, 0);
    }
    return 0;
}

static int remove_files(void **state) {
    struct files *files = *state;
    if (files->dir[0] != '\0') {
        assert_int_equal(td_remove_tree(files->dir, NULL), TD_OK);
    }
    for (size_t i = 0; i < files->count; i++) {
        td_free(files->paths[i]);
    }
    td_free(files);
    return 0;
}

static struct files *files_or_skip(void **state) {
    struct files *files = *state;
    if (files->dir[0] == '\0') {
        skip();
    }
    return files;
}

// What a client with these certificates gets from the world's server.
static enum td_rpc_status try_client(struct world *world, const struct td_rpc_tls *tls) {
    td_rpc_channel_free(world->channel);
    world->channel = NULL;
    world_connect(world, tls);
    struct result result;
    ask_job(world, JOB_ECHO, 20000, &result);
    return result.status;
}

// Such a client is kept out, and told why.
static void check_refused(struct world *world, const struct td_rpc_tls *tls, const char *why) {
    td_rpc_channel_free(world->channel);
    world->channel = NULL;
    world_connect(world, tls);
    struct result result;
    ask_job(world, JOB_ECHO, 20000, &result);
    assert_int_equal(result.status, TD_RPC_UNAVAILABLE);
    if (!strstr(result.text, why)) {
        fail_msg("\"%s\", not a word of \"%s\"", result.text, why);
    }
    assert_null(strstr(result.text, "last error"));
}

static void test_rpc_tls(void **state) {
    struct files *files = files_or_skip(state);
    struct td_rpc_tls server = {.cert_file = file_in(files, "server.pem"),
                                .key_file = file_in(files, "server.key")};
    struct td_rpc_tls good = {.ca_file = file_in(files, "ca.pem")};
    struct td_rpc_tls other = {.ca_file = file_in(files, "other-ca.pem")};
    struct td_rpc_tls named = good, misnamed = good;
    named.server_name = "localhost";
    misnamed.server_name = "example.com";
    struct world world;
    world_begin(&world, &server);
    assert_int_equal(try_client(&world, &good), TD_RPC_OK);
    assert_string_equal(world.subject, "");
    assert_int_equal(try_client(&world, &named), TD_RPC_OK);
    check_refused(&world, &misnamed, "example.com is not in peer certificate");
    check_refused(&world, &other, "not of the authority of our CA file");
    check_refused(&world, NULL, "does it speak TLS?");
    assert_int_equal(try_client(&world, &good), TD_RPC_OK);
    assert_int_equal(world.calls, 3);
    world_end(&world);
}

static void test_rpc_mutual_tls(void **state) {
    struct files *files = files_or_skip(state);
    const char *ca = file_in(files, "ca.pem");
    struct td_rpc_tls server = {ca, file_in(files, "server.pem"), file_in(files, "server.key"),
                                NULL};
    struct td_rpc_tls member = {ca, file_in(files, "member-7.pem"), file_in(files, "member-7.key"),
                                NULL};
    struct td_rpc_tls stranger = {ca, file_in(files, "stranger.pem"),
                                  file_in(files, "stranger.key"), NULL};
    struct td_rpc_tls nobody = {.ca_file = ca};
    struct world world;
    world_begin(&world, &server);
    check_refused(&world, &nobody, "it may ask for a certificate, and we have none");
    check_refused(&world, &stranger, "it may not accept our certificate");
    check_refused(&world, NULL, "does it speak TLS?");
    assert_int_equal(world.calls, 0);
    assert_int_equal(try_client(&world, &member), TD_RPC_OK);
    assert_string_equal(world.subject, "member-7");
    world_end(&world);
}

static void test_rpc_wrong_certificates(void **state) {
    struct files *files = files_or_skip(state);
    const char *cert = file_in(files, "server.pem"), *key = file_in(files, "server.key");
    const char *text = file_in(files, "text.pem"), *none = file_in(files, "none.pem");
    const struct td_rpc_tls wrong[] = {
        {NULL, NULL, NULL, NULL}, {NULL, cert, NULL, NULL}, {NULL, NULL, key, NULL},
        {NULL, none, key, NULL},  {NULL, text, key, NULL},  {none, cert, key, NULL},
    };
    struct world world;
    world_begin(&world, NULL);
    struct td_err err;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct td_rpc_server_opts opts = {.rpc = world.rpc, .tls = &wrong[i]};
        struct td_rpc_server *server = NULL;
        assert_int_equal(td_rpc_server_new(&opts, &server, &err), TD_EINVAL);
        assert_true(strlen(err.msg) > 10);
        struct td_rpc_channel *channel = NULL;
        enum td_rc rc = td_rpc_channel_new(world.rpc, world.address, &wrong[i], &channel, &err);
        assert_int_equal(rc, i == 0 ? TD_OK : TD_EINVAL);
        td_rpc_channel_free(channel);
    }
    check_refused(&world, &(struct td_rpc_tls){.ca_file = file_in(files, "ca.pem")},
                  "it does not speak TLS");
    world_end(&world);
}

// Files that are PEM, but damaged or of another key: found out when the server listens.
static void test_rpc_certificates_that_do_not_fit(void **state) {
    struct files *files = files_or_skip(state);
    const char *ca = file_in(files, "ca.pem"), *damaged = file_in(files, "damaged.pem");
    const char *cert = file_in(files, "server.pem"), *key = file_in(files, "server.key");
    const struct td_rpc_tls wrong[] = {
        {NULL, cert, file_in(files, "member-7.key"), NULL},
        {NULL, damaged, key, NULL},
        {damaged, cert, key, NULL},
    };
    struct world world;
    world_begin(&world, &(struct td_rpc_tls){NULL, cert, key, NULL});
    struct td_err err;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct td_rpc_server *server = new_server(&world, &wrong[i]);
        assert_int_equal(td_rpc_server_listen(server, "127.0.0.1:0", NULL, &err), TD_EINVAL);
        td_rpc_server_free(server);
        assert_int_not_equal(try_client(&world, &wrong[i]), TD_RPC_OK);
    }
    assert_int_equal(try_client(&world, &(struct td_rpc_tls){.ca_file = ca}), TD_RPC_OK);
    world_end(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rpc_tls),
        cmocka_unit_test(test_rpc_mutual_tls),
        cmocka_unit_test(test_rpc_wrong_certificates),
        cmocka_unit_test(test_rpc_certificates_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
