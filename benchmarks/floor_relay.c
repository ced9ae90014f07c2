/* The least that any relay pays: waits with epoll, reads, writes, and looks at nothing.
 *
 *     cc -O2 -o floor_relay benchmarks/floor_relay.c && ./floor_relay PORT UPSTREAM_PORT
 *
 * One thread, TCP on 127.0.0.1, one upstream connection for each caller's. bench_gateway.py measures
 * it as the peer `floor`. What is written blocks until the other side takes it: a benchmark's
 * yardstick, no server. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 65536, AT_ONCE = 64, BUFFER = 262144 };
static int other[MOST];

static struct sockaddr_in at(int port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

static void watch(int poll, int fd) {
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
  epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
}

static void join(int poll, int caller, int port) {
  if (caller < 0) return perror("floor_relay: accept");
  struct sockaddr_in address = at(port);
  int upstream = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(upstream, (struct sockaddr *)&address, sizeof address) || caller >= MOST || upstream >= MOST) {
    perror("floor_relay: connect");
    close(caller), close(upstream);
    return;
  }
  other[caller] = upstream, other[upstream] = caller;
  watch(poll, caller), watch(poll, upstream);
}

static int pass(int from, char *buffer) {
  ssize_t count = recv(from, buffer, BUFFER, MSG_DONTWAIT);
  if (count < 0) return errno == EAGAIN;
  for (ssize_t done = 0, now; done < count; done += now)
    if ((now = send(other[from], buffer + done, count - done, MSG_NOSIGNAL)) < 0) return 0;
  return count > 0;
}

int main(int argc, char **argv) {
  if (argc != 3) return fprintf(stderr, "usage: floor_relay PORT UPSTREAM_PORT\n"), 2;
  static char buffer[BUFFER];
  struct sockaddr_in address = at(atoi(argv[1]));
  int on = 1, listening = socket(AF_INET, SOCK_STREAM, 0), poll = epoll_create1(0);
  setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listening, (struct sockaddr *)&address, sizeof address) || listen(listening, 1024))
    return perror("floor_relay: listen"), 1;
  watch(poll, listening);
  for (;;) {
    struct epoll_event ready[AT_ONCE];
    int count = epoll_wait(poll, ready, AT_ONCE, -1);
    for (int i = 0; i < count; i++) {
      int fd = ready[i].data.fd;
      if (fd == listening) {
        join(poll, accept(listening, NULL, NULL), atoi(argv[2]));
      } else if (other[fd] && !pass(fd, buffer)) {
        int pair = other[fd];
        other[fd] = other[pair] = 0;
        close(fd), close(pair);
      }
    }
  }
}
