//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * ibwire is an InfiniBand HCA for tests. rdmavt implements its verbs, and Ethernet
 * frames of a netdev carry its packets: LRH, GRH if present, BTH, DETH, payload,
 * padding, and a zero in place of the ICRC, because the Ethernet frame has its own.
 * Control frames set the attributes of the port, which a subnet management agent
 * would set on real hardware; doc.go describes both kinds of frames.
 *
 * The queue pairs are UD, GSI and SMI only.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/etherdevice.h>
#include <linux/if_arp.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/rtnetlink.h>
#include <rdma/ib_hdrs.h>
#include <rdma/ib_mad.h>
#include <rdma/rdma_vt.h>
#include <rdma/rdmavt_qp.h>

#define WIRE_PORTS	8	/* HCAs at most */
#define WIRE_PKEYS	16	/* entries of the P_Key table */
#define WIRE_MAX_MTU	4096	/* bytes of payload */
#define WIRE_HELLO_MS	500	/* between requests for the attributes */

/* Numbers of the frames, IEEE 802's for local experiments. */
#define ETH_P_WIRE_PACKET	0x88b5
#define ETH_P_WIRE_CONTROL	0x88b6

/* Lengths in bytes (IBA 7.7, 8.3, 9.2, 9.3.1, 7.8.1). */
#define LRH_LEN		8
#define GRH_LEN		40
#define BTH_LEN		12
#define DETH_LEN	8
#define ICRC_LEN	4
#define MIN_PACKET	(LRH_LEN + BTH_LEN + DETH_LEN + ICRC_LEN)

/* Fields of the LRH (IBA 7.7). */
#define LNH_MASK	3
#define LNH_LOCAL	2	/* a BTH follows */
#define LNH_GLOBAL	3	/* a GRH follows */
#define LRH_WORDS	0x7ff
#define VL_MANAGEMENT	0xf000

#define QPN_MULTICAST	0xffffff
#define MASK_24		0xffffff	/* of QPNs and PSNs */
#define QKEY_CONTROLLED	BIT(31)	/* the sender's own Q_Key is used (IBA 10.2.5) */

static char *netdevs[WIRE_PORTS];
static int netdevs_len;
module_param_array(netdevs, charp, &netdevs_len, 0444);
MODULE_PARM_DESC(netdevs, "names of the netdevs, one for each HCA");

static ulong guids[WIRE_PORTS];
static int guids_len;
module_param_array(guids, ulong, &guids_len, 0444);
MODULE_PARM_DESC(guids, "GUIDs of the ports, in the order of the netdevs");

/* A control frame to the HCA. The same frame without contents asks for one. */
struct control {
	__be64 prefix;
	__be16 lid;
	__be16 sm_lid;
	u8 sm_sl;
	u8 lmc;
	u8 state;	/* enum ib_port_state */
	u8 mtu;		/* enum ib_mtu */
	__be32 events;	/* BIT(enum ib_event_type) */
	__be16 pkeys[WIRE_PKEYS];
} __packed;

/* The events that a control frame may raise. */
#define CONTROL_EVENTS	(BIT(IB_EVENT_PORT_ACTIVE) | BIT(IB_EVENT_PORT_ERR) | BIT(IB_EVENT_LID_CHANGE) | \
			 BIT(IB_EVENT_PKEY_CHANGE) | BIT(IB_EVENT_SM_CHANGE) | \
			 BIT(IB_EVENT_CLIENT_REREGISTER) | BIT(IB_EVENT_GID_CHANGE))

struct wire {
	struct rvt_dev_info rdi;	/* first: rvt_alloc_device allocates it */
	struct rvt_ibport port;
	struct net_device *ndev;	/* held */
	__be64 guid;

	/* Written by control frames and the netdev's events, read without a lock. */
	u16 pkeys[WIRE_PKEYS];
	u16 lid;
	u8 lmc, state, mtu;
	bool known;			/* a control frame has arrived since the link came up */

	struct packet_type packets, controls;
	struct delayed_work hello;
	bool gone;			/* the netdev is being removed */
};

struct wire_qp {
	struct rvt_qp *qp;
	struct work_struct send;
};

static struct wire *wires[WIRE_PORTS];

/* rdmavt prints the name of a PCI device with its messages; here there is none. */
static struct pci_dev no_pci_dev = { .dev.init_name = "ibwire" };

static struct wire *of_ibdev(struct ib_device *dev)
{
	return container_of(dev, struct wire, rdi.ibdev);
}

static struct wire *of_rdi(struct rvt_dev_info *rdi)
{
	return container_of(rdi, struct wire, rdi);
}

static bool is_multicast(u32 lid)
{
	return lid >= be16_to_cpu(IB_MULTICAST_LID_BASE) && lid != be16_to_cpu(IB_LID_PERMISSIVE);
}

/* The LIDs of a port differ in the low LMC bits. */
static bool is_own(struct wire *w, u32 lid)
{
	u16 own = READ_ONCE(w->lid);

	return own && (lid & ~(BIT(READ_ONCE(w->lmc)) - 1)) == own;
}

/* Two members of a partition may communicate unless both are limited (IBA 10.9.3). */
static bool pkeys_match(u16 a, u16 b)
{
	return (a & 0x7fff) && (a & 0x7fff) == (b & 0x7fff) && ((a | b) & 0x8000);
}

/* ---- receiving ---- */

/* A packet within a frame; the pointers are into the frame. */
struct packet {
	u16 slid, dlid, pkey;
	u8 sl;
	bool solicited;
	struct ib_grh *grh;	/* NULL without one */
	u32 dest_qpn, src_qpn, qkey;
	u8 *payload;
	u32 len;		/* of the payload, in bytes */
};

/* parse checks every length against the frame's and the LRH's. */
static bool parse(u8 *frame, u32 frame_len, struct packet *p)
{
	u32 total, head = LRH_LEN + BTH_LEN + DETH_LEN, bth0, pad;
	u8 *bth = frame + LRH_LEN;
	u16 lrh0;

	if (frame_len < MIN_PACKET)
		return false;
	lrh0 = get_unaligned_be16(frame);
	p->sl = lrh0 >> 4 & 15;
	p->dlid = get_unaligned_be16(frame + 2);
	total = (get_unaligned_be16(frame + 4) & LRH_WORDS) * 4; /* Ethernet may have padded the frame */
	p->slid = get_unaligned_be16(frame + 6);
	p->grh = NULL;
	if ((lrh0 & LNH_MASK) == LNH_GLOBAL) {
		p->grh = (struct ib_grh *)bth;
		bth += GRH_LEN;
		head += GRH_LEN;
	} else if ((lrh0 & LNH_MASK) != LNH_LOCAL) {
		return false;
	}
	if (total > frame_len || total < head + ICRC_LEN)
		return false;
	bth0 = get_unaligned_be32(bth);
	pad = bth0 >> 20 & 3;
	if (bth0 >> 24 != IB_OPCODE_UD_SEND_ONLY || total < head + pad + ICRC_LEN)
		return false;
	p->pkey = bth0;
	p->solicited = bth0 & BIT(23);
	p->dest_qpn = get_unaligned_be32(bth + 4) & MASK_24;
	p->qkey = get_unaligned_be32(bth + BTH_LEN);
	p->src_qpn = get_unaligned_be32(bth + BTH_LEN + 4) & MASK_24;
	p->payload = frame + head;
	p->len = total - head - pad - ICRC_LEN;
	return p->len <= WIRE_MAX_MTU;
}

/*
 * admits reports whether a queue pair accepts a packet, and finds the P_Key index of
 * the completion. QP0 checks neither key, QP1 accepts every P_Key of the table.
 */
static bool admits(struct wire *w, struct rvt_qp *qp, struct packet *p, struct ib_wc *wc)
{
	u32 num = qp->ibqp.qp_num;
	u16 i;

	if (!(ib_rvt_state_ops[qp->state] & RVT_PROCESS_RECV_OK))
		return false;
	if (num <= 1 && p->len != IB_MGMT_MAD_SIZE)
		return false;
	if (num == 0)
		return true;
	if (p->qkey != qp->qkey)
		return false;
	if (num != 1)
		return pkeys_match(p->pkey, READ_ONCE(w->pkeys[qp->s_pkey_index]));
	for (i = 0; i < WIRE_PKEYS; i++) {
		wc->pkey_index = i;
		if (pkeys_match(p->pkey, READ_ONCE(w->pkeys[i])))
			return true;
	}
	return false;
}

/* next_receive gets the next posted receive, if it has room for len bytes. */
static bool next_receive(struct rvt_qp *qp, u32 len)
{
	int got;

	if (qp->r_flags & RVT_R_REUSE_SGE) {
		qp->r_flags &= ~RVT_R_REUSE_SGE;
	} else {
		got = rvt_get_rwqe(qp, false);
		if (got < 0)
			rvt_rc_error(qp, IB_WC_LOC_QP_OP_ERR);
		if (got <= 0)
			return false;
	}
	if (len > qp->r_len) {
		qp->r_flags |= RVT_R_REUSE_SGE; /* keep the receive for the next packet */
		return false;
	}
	return true;
}

static void deliver(struct wire *w, struct rvt_qp *qp, struct packet *p)
{
	struct ib_wc wc = {
		.status = IB_WC_SUCCESS, .opcode = IB_WC_RECV, .qp = &qp->ibqp, .port_num = 1,
		.src_qp = p->src_qpn, .slid = p->slid, .sl = p->sl, .byte_len = p->len + GRH_LEN,
	};
	unsigned long flags;

	spin_lock_irqsave(&qp->r_lock, flags);
	if (!admits(w, qp, p, &wc) || !next_receive(qp, wc.byte_len))
		goto out;
	if (p->grh) {
		rvt_copy_sge(qp, &qp->r_sge, p->grh, GRH_LEN, true, false);
		wc.wc_flags = IB_WC_GRH;
	} else {
		rvt_skip_sge(&qp->r_sge, GRH_LEN, true);
	}
	rvt_copy_sge(qp, &qp->r_sge, p->payload, p->len, true, false);
	rvt_put_ss(&qp->r_sge);
	if (!test_and_clear_bit(RVT_R_WRID_VALID, &qp->r_aflags))
		goto out;
	wc.wr_id = qp->r_wr_id;
	rvt_recv_cq(qp, &wc, p->solicited);
out:
	spin_unlock_irqrestore(&qp->r_lock, flags);
}

static void deliver_group(struct wire *w, struct packet *p)
{
	struct rvt_mcast_qp *member;
	struct rvt_mcast *group;

	if (!p->grh || p->dest_qpn != QPN_MULTICAST)
		return;
	group = rvt_mcast_find(&w->port, &p->grh->dgid, p->dlid);
	if (!group)
		return;
	rcu_read_lock();
	list_for_each_entry_rcu(member, &group->qp_list, list)
		deliver(w, member->qp, p);
	rcu_read_unlock();
	if (atomic_dec_return(&group->refcount) <= 1)
		wake_up(&group->wait);
}

static void receive(struct wire *w, u8 *frame, u32 len)
{
	struct packet p;
	struct rvt_qp *qp;

	if (!parse(frame, len, &p))
		return;
	if (is_multicast(p.dlid)) {
		deliver_group(w, &p);
		return;
	}
	if (!is_own(w, p.dlid) || (p.grh && p.grh->dgid.global.interface_id != w->guid))
		return;
	rcu_read_lock();
	qp = rvt_lookup_qpn(&w->rdi, &w->port, p.dest_qpn);
	if (qp)
		deliver(w, qp, &p);
	rcu_read_unlock();
}

static void dispatch(struct wire *w, enum ib_event_type type)
{
	struct ib_event event = { .device = &w->rdi.ibdev, .element.port_num = 1, .event = type };

	ib_dispatch_event(&event);
}

static bool is_unicast(__be16 lid)
{
	return be16_to_cpu(lid) < be16_to_cpu(IB_MULTICAST_LID_BASE);
}

/* apply applies a control frame, unless a field is out of range. */
static void apply(struct wire *w, const struct control *c)
{
	u32 events = be32_to_cpu(c->events) & CONTROL_EVENTS;
	int i;

	if (!is_unicast(c->lid) || !is_unicast(c->sm_lid) || c->sm_sl > 15 || c->lmc > 7 ||
	    c->state < IB_PORT_DOWN || c->state > IB_PORT_ACTIVE_DEFER || c->mtu < IB_MTU_256 || c->mtu > IB_MTU_4096)
		return;
	WRITE_ONCE(w->port.gid_prefix, c->prefix);
	WRITE_ONCE(w->port.sm_lid, be16_to_cpu(c->sm_lid));
	WRITE_ONCE(w->port.sm_sl, c->sm_sl);
	WRITE_ONCE(w->lid, be16_to_cpu(c->lid));
	WRITE_ONCE(w->lmc, c->lmc);
	WRITE_ONCE(w->mtu, c->mtu);
	for (i = 0; i < WIRE_PKEYS; i++)
		WRITE_ONCE(w->pkeys[i], be16_to_cpu(c->pkeys[i]));
	WRITE_ONCE(w->state, c->state);
	WRITE_ONCE(w->known, true);
	for (i = 0; i < 32; i++)
		if (events & BIT(i))
			dispatch(w, i);
}

static int on_frame(struct sk_buff *skb, struct net_device *ndev, struct packet_type *type, struct net_device *orig)
{
	struct wire *w = type->af_packet_priv;

	skb = skb_share_check(skb, GFP_ATOMIC);
	if (!skb || skb_linearize(skb))
		goto out;
	if (type == &w->packets && READ_ONCE(w->state) == IB_PORT_ACTIVE)
		receive(w, skb->data, skb->len);
	else if (type == &w->controls && skb->len >= sizeof(struct control) && netif_running(ndev))
		apply(w, (struct control *)skb->data);
out:
	kfree_skb(skb);
	return NET_RX_SUCCESS;
}

static void hook(struct wire *w, struct packet_type *type, u16 number)
{
	*type = (struct packet_type){ .type = htons(number), .dev = w->ndev, .func = on_frame, .af_packet_priv = w };
	dev_add_pack(type);
}

/* ---- sending ---- */

static struct sk_buff *new_frame(struct wire *w, u16 type, u32 len)
{
	u32 room = LL_RESERVED_SPACE(w->ndev);
	struct sk_buff *skb = alloc_skb(room + len + w->ndev->needed_tailroom, GFP_ATOMIC);

	if (!skb)
		return NULL;
	skb_reserve(skb, room);
	skb_put_zero(skb, len);
	skb->dev = w->ndev;
	skb->protocol = htons(type);
	skb_reset_network_header(skb);
	return skb;
}

/* The switch is the only station behind the netdev, so the address does not matter. */
static void send_frame(struct sk_buff *skb)
{
	struct net_device *ndev = skb->dev;

	if (dev_hard_header(skb, ndev, ntohs(skb->protocol), ndev->broadcast, ndev->dev_addr, skb->len) < 0)
		kfree_skb(skb);
	else
		dev_queue_xmit(skb);
}

static u8 *put_grh(struct wire *w, u8 *at, const struct ib_global_route *r, u32 paylen)
{
	struct ib_grh *grh = (struct ib_grh *)at;

	grh->version_tclass_flow = cpu_to_be32(IB_GRH_VERSION << IB_GRH_VERSION_SHIFT |
					       r->traffic_class << IB_GRH_TCLASS_SHIFT |
					       (r->flow_label & IB_GRH_FLOW_MASK));
	grh->paylen = cpu_to_be16(paylen);
	grh->next_hdr = IB_GRH_NEXT_HDR;
	grh->hop_limit = r->hop_limit;
	grh->sgid.global.subnet_prefix = READ_ONCE(w->port.gid_prefix);
	grh->sgid.global.interface_id = w->guid;
	grh->dgid = r->dgid;
	return at + GRH_LEN;
}

static void put_payload(u8 *at, struct rvt_swqe *wqe)
{
	struct rvt_sge_state ss = {
		.sge = wqe->sg_list[0], .sg_list = wqe->sg_list + 1, .num_sge = wqe->wr.num_sge,
		.total_len = wqe->length,
	};
	u32 left = wqe->length, n;

	for (; left; left -= n) {
		n = rvt_get_sge_length(&ss.sge, left);
		memcpy(at, ss.sge.vaddr, n);
		rvt_update_sge(&ss, n, false);
		at += n;
	}
}

/* build makes the frame of a work request, whose length setup_wqe has checked. */
static struct sk_buff *build(struct wire *w, struct rvt_qp *qp, struct rvt_swqe *wqe)
{
	struct rdma_ah_attr *ah = rvt_get_swqe_ah_attr(wqe);
	bool global = rdma_ah_get_ah_flags(ah) & IB_AH_GRH;
	u32 pad = -wqe->length & 3, dlid = rdma_ah_get_dlid(ah), qkey = rvt_get_swqe_remote_qkey(wqe), bth0;
	u32 size = MIN_PACKET + (global ? GRH_LEN : 0) + wqe->length + pad;
	u16 index = qp->ibqp.qp_type == IB_QPT_GSI ? rvt_get_swqe_pkey_index(wqe) : qp->s_pkey_index;
	struct sk_buff *skb = new_frame(w, ETH_P_WIRE_PACKET, size);
	u8 *at;

	if (!skb)
		return NULL;
	at = skb->data;
	put_unaligned_be16((qp->ibqp.qp_type == IB_QPT_SMI ? VL_MANAGEMENT : 0) | rdma_ah_get_sl(ah) << 4 |
			   (global ? LNH_GLOBAL : LNH_LOCAL), at);
	put_unaligned_be16(dlid, at + 2);
	put_unaligned_be16(size / 4, at + 4);
	put_unaligned_be16(READ_ONCE(w->lid) | (rdma_ah_get_path_bits(ah) & (BIT(READ_ONCE(w->lmc)) - 1)), at + 6);
	at += LRH_LEN;
	if (global)
		at = put_grh(w, at, rdma_ah_read_grh(ah), size - LRH_LEN - GRH_LEN);
	bth0 = IB_OPCODE_UD_SEND_ONLY << 24 | pad << 20 | READ_ONCE(w->pkeys[index < WIRE_PKEYS ? index : 0]);
	if (wqe->wr.send_flags & IB_SEND_SOLICITED)
		bth0 |= BIT(23);
	put_unaligned_be32(bth0, at);
	put_unaligned_be32(is_multicast(dlid) ? QPN_MULTICAST : rvt_get_swqe_remote_qpn(wqe) & MASK_24, at + 4);
	put_unaligned_be32(wqe->psn & MASK_24, at + 8);
	at += BTH_LEN;
	put_unaligned_be32(qkey & QKEY_CONTROLLED ? qp->qkey : qkey, at);
	put_unaligned_be32(qp->ibqp.qp_num, at + 4);
	put_payload(at + DETH_LEN, wqe);
	return skb;
}

/* Packets to the port itself stay in the HCA; members of a group here get a copy (IBA 10.5.2). */
static void transmit(struct wire *w, struct sk_buff *skb)
{
	u16 dlid = get_unaligned_be16(skb->data + 2);

	if (is_own(w, dlid) || is_multicast(dlid))
		receive(w, skb->data, skb->len);
	if (is_own(w, dlid))
		kfree_skb(skb);
	else
		send_frame(skb);
}

/* carries reports whether the port takes a packet; one that it does not take is lost. */
static bool carries(struct wire *w, struct rvt_qp *qp, struct rvt_swqe *wqe)
{
	return wqe->length <= ib_mtu_enum_to_int(READ_ONCE(w->mtu)) &&
	       (READ_ONCE(w->state) == IB_PORT_ACTIVE || qp->ibqp.qp_type == IB_QPT_SMI);
}

/* send_queue sends, or flushes, all posted requests. One caller at a time is busy with it. */
static void send_queue(struct rvt_qp *qp)
{
	struct wire *w = of_ibdev(qp->ibqp.device);
	struct rvt_swqe *wqe;
	struct sk_buff *skb;
	unsigned long flags;

	spin_lock_irqsave(&qp->s_lock, flags);
	if (qp->s_flags & RVT_S_BUSY)
		goto out;
	qp->s_flags |= RVT_S_BUSY;
	for (;;) {
		if (!(ib_rvt_state_ops[qp->state] & RVT_PROCESS_NEXT_SEND_OK)) {
			if (!(ib_rvt_state_ops[qp->state] & RVT_FLUSH_SEND) || qp->s_last == READ_ONCE(qp->s_head))
				break;
			rvt_send_complete(qp, rvt_get_swqe_ptr(qp, qp->s_last), IB_WC_WR_FLUSH_ERR);
			continue;
		}
		if (qp->s_cur == READ_ONCE(qp->s_head))
			break;
		wqe = rvt_get_swqe_ptr(qp, qp->s_cur);
		qp->s_cur = qp->s_cur + 1 >= qp->s_size ? 0 : qp->s_cur + 1;
		skb = carries(w, qp, wqe) ? build(w, qp, wqe) : NULL;
		if (skb) {
			spin_unlock_irqrestore(&qp->s_lock, flags);
			local_bh_disable();
			transmit(w, skb);
			local_bh_enable();
			spin_lock_irqsave(&qp->s_lock, flags);
		}
		rvt_send_complete(qp, wqe, IB_WC_SUCCESS);
	}
	qp->s_flags &= ~RVT_S_BUSY;
out:
	spin_unlock_irqrestore(&qp->s_lock, flags);
}

static void send_work(struct work_struct *work)
{
	send_queue(container_of(work, struct wire_qp, send)->qp);
}

static bool schedule_send(struct rvt_qp *qp)
{
	return queue_work(system_highpri_wq, &((struct wire_qp *)qp->priv)->send);
}

/* ---- what rdmavt requires of a driver ---- */

static void *qp_priv_alloc(struct rvt_dev_info *rdi, struct rvt_qp *qp)
{
	struct wire_qp *priv = kzalloc(sizeof(*priv), GFP_KERNEL);

	if (!priv)
		return ERR_PTR(-ENOMEM);
	priv->qp = qp;
	INIT_WORK(&priv->send, send_work);
	return priv;
}

static void qp_priv_free(struct rvt_dev_info *rdi, struct rvt_qp *qp)
{
	kfree(qp->priv);
}

static void stop_send_queue(struct rvt_qp *qp)
{
	cancel_work_sync(&((struct wire_qp *)qp->priv)->send);
}

/* A request is sent by the work queue, and must have a payload that some port could take. */
static int setup_wqe(struct rvt_qp *qp, struct rvt_swqe *wqe, bool *call_send)
{
	*call_send = false;
	return wqe->length > WIRE_MAX_MTU ? -EINVAL : 0;
}

static int check_ah(struct ib_device *dev, struct rdma_ah_attr *attr)
{
	u32 dlid = rdma_ah_get_dlid(attr);

	if (!dlid || dlid > U16_MAX || rdma_ah_get_sl(attr) > 15)
		return -EINVAL;
	if (is_multicast(dlid) && !(rdma_ah_get_ah_flags(attr) & IB_AH_GRH))
		return -EINVAL;
	return 0;
}

static void notify_new_ah(struct ib_device *dev, struct rdma_ah_attr *attr, struct rvt_ah *ah)
{
	ah->log_pmtu = ilog2(WIRE_MAX_MTU);
}

static int query_port_state(struct rvt_dev_info *rdi, u32 port, struct ib_port_attr *attr)
{
	struct wire *w = of_rdi(rdi);

	attr->lid = READ_ONCE(w->lid);
	attr->lmc = READ_ONCE(w->lmc);
	attr->state = READ_ONCE(w->state);
	attr->phys_state = attr->state == IB_PORT_DOWN ? IB_PORT_PHYS_STATE_POLLING : IB_PORT_PHYS_STATE_LINK_UP;
	attr->active_mtu = READ_ONCE(w->mtu);
	attr->max_mtu = IB_MTU_4096;
	attr->active_width = IB_WIDTH_4X;
	attr->active_speed = IB_SPEED_EDR;
	attr->max_vl_num = 1;
	attr->gid_tbl_len = 1;
	return 0;
}

static int get_guid_be(struct rvt_dev_info *rdi, struct rvt_ibport *port, int index, __be64 *guid)
{
	if (index)
		return -EINVAL;
	*guid = of_rdi(rdi)->guid;
	return 0;
}

static int modify_device(struct ib_device *dev, int mask, struct ib_device_modify *attr)
{
	if (mask & ~IB_DEVICE_MODIFY_NODE_DESC)
		return -EOPNOTSUPP;
	if (mask)
		memcpy(dev->node_desc, attr->node_desc, sizeof(dev->node_desc));
	return 0;
}

/* rdmavt also requires these, for connected queue pairs and for hardware. */
static void ignore_qp(struct rvt_qp *qp) {}
static void ignore_port(struct rvt_dev_info *rdi, u32 port) {}
static int ignore_shutdown(struct rvt_dev_info *rdi, u32 port) { return 0; }
static void ignore_restart(struct rvt_qp *qp, u32 psn, int wait) {}
static unsigned int no_qps(struct rvt_dev_info *rdi) { return 0; }
static int first_cpu(struct rvt_dev_info *rdi, int vector) { return 0; }
static struct pci_dev *get_pci_dev(struct rvt_dev_info *rdi) { return &no_pci_dev; }
static int pmtu_of(struct rvt_dev_info *rdi, struct rvt_qp *qp, struct ib_qp_attr *attr) { return attr->path_mtu; }
static u32 mtu_of(struct rvt_dev_info *rdi, struct rvt_qp *qp, u32 pmtu) { return ib_mtu_enum_to_int(pmtu); }
static int path_mtu_of(u32 mtu) { return ib_mtu_int_to_enum(mtu); }

static const struct rvt_driver_provided driver = {
	.schedule_send = schedule_send,
	.schedule_send_no_lock = schedule_send,
	.do_send = send_queue,
	.setup_wqe = setup_wqe,
	.get_pci_dev = get_pci_dev,
	.qp_priv_alloc = qp_priv_alloc,
	.qp_priv_free = qp_priv_free,
	.notify_qp_reset = ignore_qp,
	.flush_qp_waiters = ignore_qp,
	.quiesce_qp = ignore_qp,
	.notify_error_qp = ignore_qp,
	.stop_send_queue = stop_send_queue,
	.free_all_qps = no_qps,
	.notify_restart_rc = ignore_restart,
	.get_pmtu_from_attr = pmtu_of,
	.mtu_from_qp = mtu_of,
	.mtu_to_path_mtu = path_mtu_of,
	.query_port_state = query_port_state,
	.shut_down_port = ignore_shutdown,
	.cap_mask_chg = ignore_port,
	.get_guid_be = get_guid_be,
	.comp_vect_cpu_lookup = first_cpu,
	.check_ah = check_ah,
	.notify_new_ah = notify_new_ah,
};

static const struct rvt_operation_params post_parms[RVT_OPERATION_MAX] = {
	[IB_WR_SEND] = {
		.length = sizeof(struct ib_send_wr),
		.qpt_support = BIT(IB_QPT_UD) | BIT(IB_QPT_SMI) | BIT(IB_QPT_GSI),
	},
};

static const enum ib_wc_opcode wc_opcode[] = { [IB_WR_SEND] = IB_WC_SEND };

/* ib_core requires a group of attributes from a driver of this ID. */
static struct attribute *no_attrs[] = { NULL };
static const struct attribute_group no_group = { .name = "ibwire", .attrs = no_attrs };
static const struct attribute_group *port_groups[] = { &no_group, NULL };

/* The ID makes libibverbs use its driver for rdmavt, libhfi1verbs. */
static const struct ib_device_ops device_ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_HFI1,
	.modify_device = modify_device,
	.port_groups = port_groups,
};

static void set_limits(struct ib_device_attr *a)
{
	a->max_pd = a->max_ah = a->max_cq = U16_MAX;
	a->max_cqe = 1 << 17;
	a->max_qp = 1 << 14;
	a->max_qp_wr = (1 << 14) - 1;
	a->max_send_sge = a->max_recv_sge = a->max_sge_rd = 32;
	a->max_srq = 1 << 10;
	a->max_srq_wr = 1 << 17;
	a->max_srq_sge = 128;
	a->max_mr_size = U64_MAX;
	a->page_size_cap = PAGE_SIZE;
	a->max_pkeys = WIRE_PKEYS;
	a->max_mcast_grp = 1 << 14;
	a->max_mcast_qp_attach = 16;
	a->max_total_mcast_qp_attach = 16 << 14;
}

static void set_params(struct rvt_driver_params *d)
{
	d->lkey_table_size = 16;	/* bits */
	d->qp_table_size = 256;
	d->qpn_start = 1;
	d->qpn_inc = 1;
	d->qpn_res_start = d->qpn_res_end = MASK_24 - 1;
	d->qos_shift = 1;
	d->psn_mask = d->psn_modify_mask = MASK_24;
	d->nports = 1;
	d->npkeys = WIRE_PKEYS;
	d->node = 0;			/* rdmavt allocates on it; -1 is not accepted */
	d->core_cap_flags = RDMA_CORE_PORT_IBA_IB;
	d->max_mad_size = IB_MGMT_MAD_SIZE;
	d->max_rdma_atomic = 1;
	d->sge_copy_mode = RVT_SGE_COPY_MEMCPY;
}

/* ---- netdevs ---- */

/* say_hello asks the switch for the attributes of the port until they arrive. */
static void say_hello(struct work_struct *work)
{
	struct wire *w = container_of(to_delayed_work(work), struct wire, hello);
	struct sk_buff *skb;

	if (READ_ONCE(w->known) || !netif_running(w->ndev))
		return;
	skb = new_frame(w, ETH_P_WIRE_CONTROL, ETH_ZLEN - ETH_HLEN);
	if (skb)
		send_frame(skb);
	schedule_delayed_work(&w->hello, msecs_to_jiffies(WIRE_HELLO_MS));
}

static void link_down(struct wire *w)
{
	bool was_active = READ_ONCE(w->state) == IB_PORT_ACTIVE;

	WRITE_ONCE(w->known, false);
	WRITE_ONCE(w->state, IB_PORT_DOWN);
	if (was_active)
		dispatch(w, IB_EVENT_PORT_ERR);
}

static void remove(struct wire *w)
{
	dev_remove_pack(&w->packets);
	dev_remove_pack(&w->controls);
	cancel_delayed_work_sync(&w->hello);
	rvt_unregister_device(&w->rdi);
	dev_put(w->ndev);
	rvt_dealloc_device(&w->rdi);
}

/* remove_those removes the HCAs whose netdevs are gone, or all. Its callers never overlap. */
static void remove_those(bool all)
{
	int i;

	for (i = 0; i < WIRE_PORTS; i++) {
		struct wire *w = wires[i];

		if (!w || (!all && !READ_ONCE(w->gone)))
			continue;
		rtnl_lock(); /* no notifier call still uses it */
		WRITE_ONCE(wires[i], NULL);
		rtnl_unlock();
		remove(w);
	}
}

/* Removing an HCA needs the lock that a notifier's caller holds, so a work item does it. */
static void reap(struct work_struct *work)
{
	remove_those(false);
}

static DECLARE_WORK(reap_work, reap);

static int on_netdev(struct notifier_block *nb, unsigned long event, void *ptr)
{
	struct net_device *ndev = netdev_notifier_info_to_dev(ptr);
	int i;

	for (i = 0; i < WIRE_PORTS; i++) {
		struct wire *w = READ_ONCE(wires[i]);

		if (!w || w->ndev != ndev)
			continue;
		if (event == NETDEV_UP)
			schedule_delayed_work(&w->hello, 0);
		if (event == NETDEV_DOWN)
			link_down(w);
		if (event == NETDEV_UNREGISTER) {
			WRITE_ONCE(w->gone, true);
			schedule_work(&reap_work);
		}
	}
	return NOTIFY_DONE;
}

static struct notifier_block netdev_notifier = { .notifier_call = on_netdev };

/* add takes over the reference to the netdev, also when it fails. */
static int add(int unit, struct net_device *ndev, u64 guid)
{
	struct rvt_dev_info *rdi = rvt_alloc_device(sizeof(struct wire), 1);
	struct wire *w = rdi ? of_rdi(rdi) : NULL;
	int err = -ENOMEM;

	if (!w)
		goto put;
	w->ndev = ndev;
	w->guid = cpu_to_be64(guid);
	w->state = IB_PORT_DOWN;
	w->mtu = IB_MTU_2048;
	w->pkeys[0] = 0xffff;
	INIT_DELAYED_WORK(&w->hello, say_hello);
	spin_lock_init(&w->port.lock);
	w->port.gid_prefix = cpu_to_be64(0xfe80ull << 48);
	w->port.port_cap_flags = IB_PORT_SYS_IMAGE_GUID_SUP | IB_PORT_CLIENT_REG_SUP;
	w->port.subnet_timeout = 18;	/* OpenSM's default */

	set_limits(&rdi->dparms.props);
	rdi->dparms.props.sys_image_guid = w->guid;
	set_params(&rdi->dparms);
	rdi->driver_f = driver;
	rdi->post_parms = post_parms;
	rdi->wc_opcode = wc_opcode;
	rdi->ibdev.phys_port_cnt = 1;
	rdi->ibdev.node_guid = w->guid;
	rdi->ibdev.dev.parent = ndev->dev.parent;
	snprintf(rdi->ibdev.node_desc, sizeof(rdi->ibdev.node_desc), "ibwire%d", unit);
	ib_set_device_ops(&rdi->ibdev, &device_ops);
	rvt_set_ibdev_name(rdi, "%s%d", "ibwire", unit);
	rvt_init_port(rdi, &w->port, 0, w->pkeys);
	err = rvt_register_device(rdi);
	if (err) {
		rvt_dealloc_device(rdi);
		goto put;
	}
	hook(w, &w->packets, ETH_P_WIRE_PACKET);
	hook(w, &w->controls, ETH_P_WIRE_CONTROL);
	WRITE_ONCE(wires[unit], w);
	schedule_delayed_work(&w->hello, 0);
	return 0;
put:
	dev_put(ndev);
	return err;
}

static int __init wire_init(void)
{
	int i, err = 0;

	if (!netdevs_len || netdevs_len != guids_len) {
		pr_err("%d netdevs and %d guids, want as many of both\n", netdevs_len, guids_len);
		return -EINVAL;
	}
	for (i = 0; i < netdevs_len && !err; i++) {
		struct net_device *ndev = guids[i] ? dev_get_by_name(&init_net, netdevs[i]) : NULL;

		if (ndev && ndev->type != ARPHRD_ETHER) {
			dev_put(ndev);
			ndev = NULL;
		}
		err = ndev ? add(i, ndev, guids[i]) : -ENODEV;
		if (err)
			pr_err("netdev %s with GUID %lx: %d\n", netdevs[i], guids[i], err);
	}
	if (!err)
		err = register_netdevice_notifier(&netdev_notifier);
	if (err)
		remove_those(true);
	return err;
}

static void __exit wire_exit(void)
{
	unregister_netdevice_notifier(&netdev_notifier);
	flush_work(&reap_work);
	remove_those(true);
}

module_init(wire_init);
module_exit(wire_exit);
MODULE_DESCRIPTION("InfiniBand HCA whose packets are carried by Ethernet frames");
MODULE_LICENSE("Dual MIT/GPL");
