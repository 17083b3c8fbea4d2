// The functions that Go calls. Each is the libibverbs function of the same name, except as
// its comment says. A function that returns int returns 0 or an errno; one that returns a
// pointer sets errno if the pointer is NULL.
#ifndef IPOIBD_VERBS_SHIM_H
#define IPOIBD_VERBS_SHIM_H

#if !__has_include(<infiniband/verbs.h>)
#error "infiniband/verbs.h is missing: install Debian's package libibverbs-dev, or build with CGO_ENABLED=0 for only the software HCA"
#endif
#include <infiniband/verbs.h>

// shim_load loads libibverbs.so.1 and finds its functions. It returns NULL, or the reason
// why it failed. It is called once, before all other functions.
const char *shim_load(void);

// shim_open opens a device by its verbs interface, such as uverbs0. It fails with ENODEV if
// libibverbs does not list the interface.
struct ibv_context *shim_open(const char *interface);
int shim_close(struct ibv_context *ctx);
int shim_query_device(struct ibv_context *ctx, struct ibv_device_attr *attr);
int shim_query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr);

// shim_query_gids stores the non-empty GIDs of all ports. It returns their number, or a
// negated errno.
ssize_t shim_query_gids(struct ibv_context *ctx, struct ibv_gid_entry *entries, size_t max);

// shim_event is an asynchronous event that is already acknowledged.
struct shim_event {
	int err; // errno; EAGAIN: no event
	uint32_t type;
	uint32_t num;        // QPN or port number; for a CQ its generation
	uint32_t generation; // given when the object was created; 0 for other objects
};
struct shim_event shim_async_event(struct ibv_context *ctx);

struct ibv_pd *shim_alloc_pd(struct ibv_context *ctx);
int shim_dealloc_pd(struct ibv_pd *pd);
struct ibv_mr *shim_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access);
int shim_dereg_mr(struct ibv_mr *mr);
struct ibv_ah *shim_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr);
int shim_destroy_ah(struct ibv_ah *ah);

struct ibv_comp_channel *shim_create_channel(struct ibv_context *ctx);
int shim_destroy_channel(struct ibv_comp_channel *channel);
struct ibv_cq *shim_create_cq(struct ibv_comp_channel *channel, int entries, uint32_t generation);
int shim_destroy_cq(struct ibv_cq *cq);
int shim_arm_cq(struct ibv_cq *cq);
int shim_poll_cq(struct ibv_cq *cq, int max, struct ibv_wc *wc); // number of completions, negative on an error

// shim_cq_event fetches and acknowledges one event of a channel. It returns EAGAIN if no
// event is pending.
int shim_cq_event(struct ibv_comp_channel *channel);

struct ibv_qp *shim_create_qp(struct ibv_pd *pd, struct ibv_cq *send, struct ibv_cq *recv,
			      struct ibv_qp_cap cap, uint32_t generation);
int shim_destroy_qp(struct ibv_qp *qp);
int shim_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int shim_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int shim_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid);
int shim_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid);

// shim_ud is the destination of a send: the start of the union in struct ibv_send_wr.
struct shim_ud {
	struct ibv_ah *ah;
	uint32_t remote_qpn;
	uint32_t remote_qkey;
};

// shim_posted is the result of posting a batch.
struct shim_posted {
	int taken;
	int err; // why the next one was not accepted, else 0
};

// These functions link the n requests, at least 1, of a batch in an array.
struct shim_posted shim_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, int n);
struct shim_posted shim_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, int n);

#endif
