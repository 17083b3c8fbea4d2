//go:build cgo && linux

#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(offsetof(struct shim_ud, ah) == offsetof(struct ibv_send_wr, wr.ud.ah) - offsetof(struct ibv_send_wr, wr) &&
	       offsetof(struct shim_ud, remote_qpn) == offsetof(struct ibv_send_wr, wr.ud.remote_qpn) - offsetof(struct ibv_send_wr, wr) &&
	       offsetof(struct shim_ud, remote_qkey) == offsetof(struct ibv_send_wr, wr.ud.remote_qkey) - offsetof(struct ibv_send_wr, wr),
	       "struct shim_ud is laid out as the member ud of struct ibv_send_wr");

// The functions, each with the version of its symbol (libibverbs.map.in), which
// fixes its ABI.
#define FUNCTIONS(F)                        \
	F(get_device_list, "IBVERBS_1.1")   \
	F(free_device_list, "IBVERBS_1.1")  \
	F(open_device, "IBVERBS_1.1")       \
	F(close_device, "IBVERBS_1.1")      \
	F(query_device, "IBVERBS_1.1")      \
	F(query_port, "IBVERBS_1.1")        \
	F(get_async_event, "IBVERBS_1.1")   \
	F(ack_async_event, "IBVERBS_1.1")   \
	F(alloc_pd, "IBVERBS_1.1")          \
	F(dealloc_pd, "IBVERBS_1.1")        \
	F(reg_mr, "IBVERBS_1.1")            \
	F(dereg_mr, "IBVERBS_1.1")          \
	F(create_ah, "IBVERBS_1.1")         \
	F(destroy_ah, "IBVERBS_1.1")        \
	F(create_comp_channel, "IBVERBS_1.0")  \
	F(destroy_comp_channel, "IBVERBS_1.0") \
	F(create_cq, "IBVERBS_1.1")         \
	F(destroy_cq, "IBVERBS_1.1")        \
	F(get_cq_event, "IBVERBS_1.1")      \
	F(ack_cq_events, "IBVERBS_1.1")     \
	F(create_qp, "IBVERBS_1.1")         \
	F(destroy_qp, "IBVERBS_1.1")        \
	F(modify_qp, "IBVERBS_1.1")         \
	F(query_qp, "IBVERBS_1.1")          \
	F(attach_mcast, "IBVERBS_1.1")      \
	F(detach_mcast, "IBVERBS_1.1")

static struct {
#define POINTER(name, version) __typeof__(ibv_##name) *name;
	FUNCTIONS(POINTER)
	__typeof__(_ibv_query_gid_table) *query_gid_table; // rdma-core 32
} lib;

static const char *missing(const char *name)
{
	static char text[128];
	strcat(strcpy(text, "older than rdma-core 32: missing symbol "), name);
	return text;
}

// keep_objects makes libibverbs keep its part of an object until the events that refer to it
// are acknowledged, even if the device is gone. Without this, events must not be fetched
// while the object is destroyed (ibv_open_device.3). MLX4_DEVICE_FATAL_CLEANUP is the older
// name of the variable (libibverbs/init.c).
static void keep_objects(void)
{
	unsetenv("RDMAV_ALLOW_DISASSOC_DESTROY");
	unsetenv("MLX4_DEVICE_FATAL_CLEANUP");
}

const char *shim_load(void)
{
	keep_objects();
	void *so = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!so)
		return dlerror();
#define FIND(name, version) \
	if (!(lib.name = (__typeof__(lib.name))dlvsym(so, "ibv_" #name, version))) \
		return missing("ibv_" #name);
	FUNCTIONS(FIND)
	lib.query_gid_table = (__typeof__(lib.query_gid_table))dlvsym(so, "_ibv_query_gid_table", "IBVERBS_1.11");
	return lib.query_gid_table ? NULL : missing("_ibv_query_gid_table");
}

// code returns the errno that a function returned, or set when it returned -1, or returned
// negated, as posts of qedr and bnxt_re do. If none was set, it returns ENOMEM: posts of
// mthca set none, and a full queue is the only error that is not detected earlier.
static int code(int result)
{
	if (result == -1)
		return errno ? errno : ENOMEM;
	return result < 0 ? -result : result;
}

static struct ibv_device *find(struct ibv_device **list, const char *interface)
{
	for (; *list; list++)
		if (!strcmp((*list)->dev_name, interface))
			return *list;
	errno = ENODEV;
	return NULL;
}

struct ibv_context *shim_open(const char *interface)
{
	struct ibv_device **list = (lib.get_device_list)(NULL);
	if (!list)
		return NULL;
	struct ibv_device *dev = find(list, interface);
	struct ibv_context *ctx = dev ? lib.open_device(dev) : NULL;
	int err = errno;
	lib.free_device_list(list);
	errno = err;
	return ctx;
}

int shim_close(struct ibv_context *ctx)
{
	return code(lib.close_device(ctx));
}

int shim_query_device(struct ibv_context *ctx, struct ibv_device_attr *attr)
{
	return code(lib.query_device(ctx, attr));
}

int shim_query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr)
{
	memset(attr, 0, sizeof(*attr)); // the function knows the members up to flags
	return code(lib.query_port(ctx, port, (struct _compat_ibv_port_attr *)attr));
}

ssize_t shim_query_gids(struct ibv_context *ctx, struct ibv_gid_entry *entries, size_t max)
{
	return lib.query_gid_table(ctx, entries, max, 0, sizeof(*entries));
}

// describe copies the object to which an event refers. The object is not destroyed until the
// event is acknowledged (ibv_get_async_event.3).
static struct shim_event describe(const struct ibv_async_event *ev)
{
	struct shim_event out = {.type = ev->event_type};
	switch (ev->event_type) {
	case IBV_EVENT_CQ_ERR:
		out.num = out.generation = (uintptr_t)ev->element.cq->cq_context;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		out.num = ev->element.qp->qp_num;
		out.generation = (uintptr_t)ev->element.qp->qp_context;
		break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_PKEY_CHANGE:
	case IBV_EVENT_SM_CHANGE:
	case IBV_EVENT_CLIENT_REREGISTER:
	case IBV_EVENT_GID_CHANGE:
		out.num = ev->element.port_num;
		break;
	default: // an event of the device, or of an object that this package does not create
		break;
	}
	return out;
}

struct shim_event shim_async_event(struct ibv_context *ctx)
{
	struct ibv_async_event ev;
	int err = code(lib.get_async_event(ctx, &ev));
	if (err)
		return (struct shim_event){.err = err};
	struct shim_event out = describe(&ev);
	lib.ack_async_event(&ev);
	return out;
}

struct ibv_pd *shim_alloc_pd(struct ibv_context *ctx)
{
	return lib.alloc_pd(ctx);
}

int shim_dealloc_pd(struct ibv_pd *pd)
{
	return code(lib.dealloc_pd(pd));
}

struct ibv_mr *shim_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return (lib.reg_mr)(pd, addr, length, access);
}

int shim_dereg_mr(struct ibv_mr *mr)
{
	return code(lib.dereg_mr(mr));
}

struct ibv_ah *shim_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	return lib.create_ah(pd, attr);
}

int shim_destroy_ah(struct ibv_ah *ah)
{
	return code(lib.destroy_ah(ah));
}

struct ibv_comp_channel *shim_create_channel(struct ibv_context *ctx)
{
	return lib.create_comp_channel(ctx);
}

int shim_destroy_channel(struct ibv_comp_channel *channel)
{
	return code(lib.destroy_comp_channel(channel));
}

struct ibv_cq *shim_create_cq(struct ibv_comp_channel *channel, int entries, uint32_t generation)
{
	return lib.create_cq(channel->context, entries, (void *)(uintptr_t)generation, channel, 0);
}

int shim_destroy_cq(struct ibv_cq *cq)
{
	return code(lib.destroy_cq(cq));
}

int shim_arm_cq(struct ibv_cq *cq)
{
	return code(ibv_req_notify_cq(cq, 0));
}

int shim_poll_cq(struct ibv_cq *cq, int max, struct ibv_wc *wc)
{
	return ibv_poll_cq(cq, max, wc);
}

int shim_cq_event(struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq;
	void *context;
	int err = code(lib.get_cq_event(channel, &cq, &context));
	if (!err)
		lib.ack_cq_events(cq, 1);
	return err;
}

struct ibv_qp *shim_create_qp(struct ibv_pd *pd, struct ibv_cq *send, struct ibv_cq *recv,
			      struct ibv_qp_cap cap, uint32_t generation)
{
	struct ibv_qp_init_attr init = {
		.qp_context = (void *)(uintptr_t)generation,
		.send_cq = send,
		.recv_cq = recv,
		.cap = cap,
		.qp_type = IBV_QPT_UD,
	};
	return lib.create_qp(pd, &init);
}

int shim_destroy_qp(struct ibv_qp *qp)
{
	return code(lib.destroy_qp(qp));
}

int shim_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	return code(lib.modify_qp(qp, attr, mask));
}

int shim_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	struct ibv_qp_init_attr init;
	return code(lib.query_qp(qp, attr, mask, &init));
}

int shim_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	return code(lib.attach_mcast(qp, gid, lid));
}

int shim_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	return code(lib.detach_mcast(qp, gid, lid));
}

// refused returns the result of a batch that a post did not accept completely. A provider
// whose doorbell fails (librxe) reports no bad request: none is executed then.
static struct shim_posted refused(int err, int before_bad)
{
	return (struct shim_posted){.taken = before_bad, .err = err};
}

struct shim_posted shim_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, int n)
{
	struct ibv_send_wr *bad = NULL;
	for (int i = 0; i < n; i++)
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
	errno = 0;
	int err = code(ibv_post_send(qp, wr, &bad));
	return err ? refused(err, bad ? bad - wr : 0) : (struct shim_posted){.taken = n};
}

struct shim_posted shim_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, int n)
{
	struct ibv_recv_wr *bad = NULL;
	for (int i = 0; i < n; i++)
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
	errno = 0;
	int err = code(ibv_post_recv(qp, wr, &bad));
	return err ? refused(err, bad ? bad - wr : 0) : (struct shim_posted){.taken = n};
}
