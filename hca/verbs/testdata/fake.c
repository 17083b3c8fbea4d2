// A libibverbs with one device, for tests. The destination of the first send of a batch, or
// the wr_id of its first receive, determines the outcome of the batch. Sends are executed by
// ibv_poll_cq: one with an unknown L_Key fails, and later ones are flushed.
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <unistd.h>

#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

static struct ibv_device device = {.name = "fake0", .dev_name = "uverbs0"};
static struct ibv_context context;
static struct ibv_pd pd = {.context = &context};
static struct ibv_cq cq = {.context = &context};
static struct ibv_qp qp = {.context = &context, .qp_num = 0x11};
static enum ibv_qp_state state;

struct order {
	int32_t result;
	uint16_t err;
	uint8_t bad; // counted from 1; 0: no bad request
	uint8_t lone; // a batch of one request is refused, too
};

static int carry_out(uint64_t order, int n, int *bad)
{
	union {
		uint64_t bits;
		struct order order;
	} u = {.bits = order};
	*bad = u.order.bad;
	if (n < *bad) {
		if (n > 1 || !u.order.lone)
			return *bad = 0;
		*bad = 1;
	}
	errno = u.order.err;
	return u.order.result;
}

// The send queue: a ring of the requests that were accepted.
enum { DEPTH = 64 };
static struct posted {
	uint64_t wr_id;
	int signaled, fails;
} sends[DEPTH];
static unsigned int posted, executed;
static int failed;

static int fails(const struct ibv_send_wr *wr)
{
	for (int i = 0; i < wr->num_sge; i++)
		if (wr->sg_list[i].lkey > DEPTH)
			return 1;
	return 0;
}

static int post_send(struct ibv_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
	int n = 0;
	for (struct ibv_send_wr *w = wr; w; w = w->next)
		n++;
	int bad, result = carry_out(wr->wr.ud.remote_qpn | (uint64_t)wr->wr.ud.remote_qkey << 32, n, &bad);
	for (int i = 1; wr && (!result || i < bad); i++, wr = wr->next)
		sends[posted++ % DEPTH] = (struct posted){wr->wr_id, wr->send_flags & IBV_SEND_SIGNALED, fails(wr)};
	if (bad)
		*bad_wr = wr;
	return result;
}

static int post_recv(struct ibv_qp *q, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	int n = 0;
	for (struct ibv_recv_wr *w = wr; w; w = w->next)
		n++;
	int bad, result = carry_out(wr->wr_id, n, &bad);
	for (; bad > 1; bad--)
		wr = wr->next;
	if (bad)
		*bad_wr = wr;
	return result;
}

static int poll_cq(struct ibv_cq *c, int max, struct ibv_wc *wc)
{
	int n = 0;
	while (executed != posted && n < max) {
		struct posted *p = &sends[executed++ % DEPTH];
		enum ibv_wc_status status = failed ? IBV_WC_WR_FLUSH_ERR : p->fails ? IBV_WC_LOC_PROT_ERR : IBV_WC_SUCCESS;
		if (status || p->signaled)
			wc[n++] = (struct ibv_wc){.wr_id = p->wr_id, .status = status, .qp_num = qp.qp_num};
		failed |= status;
	}
	return n;
}

struct ibv_device **ibv_get_device_list(int *n)
{
	if (getenv("RDMAV_ALLOW_DISASSOC_DESTROY") || getenv("MLX4_DEVICE_FATAL_CLEANUP")) {
		errno = EPERM; // libibverbs would free the objects that events refer to
		return NULL;
	}
	struct ibv_device **list = calloc(2, sizeof(*list));
	list[0] = &device;
	return list;
}
void ibv_free_device_list(struct ibv_device **list) { free(list); }

static int new_pipe(void)
{
	int fds[2];
	return pipe(fds) ? -1 : fds[0];
}

struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	context.device = d;
	context.async_fd = new_pipe();
	context.ops.post_send = post_send;
	context.ops.post_recv = post_recv;
	context.ops.poll_cq = poll_cq;
	return &context;
}
int ibv_close_device(struct ibv_context *c) { return 0; }

int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a)
{
	*a = (struct ibv_device_attr){.phys_port_cnt = 1, .max_qp_wr = 16, .max_sge = 3, .max_cqe = 16};
	return 0;
}
int ibv_query_port(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *a)
{
	((struct ibv_port_attr *)a)->pkey_tbl_len = 1;
	return 0;
}
ssize_t _ibv_query_gid_table(struct ibv_context *c, struct ibv_gid_entry *e, size_t n, uint32_t flags, size_t size) { return 0; }
int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *e) { return -1; }
void ibv_ack_async_event(struct ibv_async_event *e) {}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *c) { return &pd; }
int ibv_dealloc_pd(struct ibv_pd *p) { return 0; }
struct ibv_mr *ibv_reg_mr(struct ibv_pd *p, void *addr, size_t n, int access)
{
	static uint32_t key;
	struct ibv_mr *mr = calloc(1, sizeof(*mr));
	mr->lkey = ++key;
	return mr;
}
int ibv_dereg_mr(struct ibv_mr *mr)
{
	free(mr);
	return 0;
}
struct ibv_ah *ibv_create_ah(struct ibv_pd *p, struct ibv_ah_attr *a) { return calloc(1, sizeof(struct ibv_ah)); }
int ibv_destroy_ah(struct ibv_ah *ah)
{
	free(ah);
	return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c)
{
	struct ibv_comp_channel *channel = calloc(1, sizeof(*channel));
	channel->context = c;
	channel->fd = new_pipe();
	return channel;
}
int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	free(channel);
	return 0;
}
struct ibv_cq *ibv_create_cq(struct ibv_context *c, int n, void *cq_context, struct ibv_comp_channel *channel, int vector) { return &cq; }
int ibv_destroy_cq(struct ibv_cq *c) { return 0; }
int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **c, void **cq_context) { return -1; }
void ibv_ack_cq_events(struct ibv_cq *c, unsigned int n) {}

struct ibv_qp *ibv_create_qp(struct ibv_pd *p, struct ibv_qp_init_attr *a)
{
	state = IBV_QPS_RESET;
	return &qp;
}
int ibv_destroy_qp(struct ibv_qp *q) { return 0; }
int ibv_modify_qp(struct ibv_qp *q, struct ibv_qp_attr *a, int mask)
{
	state = a->qp_state;
	if (state == IBV_QPS_RESET) {
		executed = posted;
		failed = 0;
	}
	return 0;
}
int ibv_query_qp(struct ibv_qp *q, struct ibv_qp_attr *a, int mask, struct ibv_qp_init_attr *init)
{
	*a = (struct ibv_qp_attr){.qp_state = state, .port_num = 1};
	return 0;
}
int ibv_attach_mcast(struct ibv_qp *q, const union ibv_gid *gid, uint16_t lid) { return 0; }
int ibv_detach_mcast(struct ibv_qp *q, const union ibv_gid *gid, uint16_t lid) { return 0; }
