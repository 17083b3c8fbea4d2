//go:build cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"encoding/binary"

	"ipoibd/hca"
)

// Structures of libibverbs, with Go names for the tests, which cannot use cgo.
type (
	cDeviceAttr = C.struct_ibv_device_attr
	cPortAttr   = C.struct_ibv_port_attr
	cGIDEntry   = C.struct_ibv_gid_entry
	cWC         = C.struct_ibv_wc
)

// deviceAttr translates the attributes of a device. Large sends and checksums need an entry of
// the scatter/gather list for the headers, beside the two that the contract requires.
func deviceAttr(name string, a *cDeviceAttr) hca.DeviceAttr {
	out := hca.DeviceAttr{
		Name: name, NodeGUID: guid(uint64(a.node_guid)), SysImageGUID: guid(uint64(a.sys_image_guid)),
		Ports: uint8(a.phys_port_cnt), Transport: hca.TransportHardware,
		MaxQPWR: int(a.max_qp_wr), MaxSGE: int(a.max_sge), MaxCQE: int(a.max_cqe), MaxQueues: maxQueues,
	}
	if out.MaxSGE >= 2+cutSGEs {
		out.MaxSGE -= cutSGEs
		out.IPCsum, out.MaxTSO, out.USO, out.TSOEntries = true, maxTSO, true, true
	}
	return out
}

// fillsCsum reports whether the device fills in checksums itself.
func fillsCsum(a *cDeviceAttr) bool { return a.device_cap_flags&C.IBV_DEVICE_UD_IP_CSUM != 0 }

// guid converts a __be64, as read from memory.
func guid(be uint64) (g hca.GUID) {
	binary.NativeEndian.PutUint64(g[:], be)
	return g
}

// portState returns the state of a port without its tables.
func portState(a *cPortAttr) hca.PortAttr {
	return hca.PortAttr{
		State: hca.PortState(a.state), LinkLayer: hca.LinkLayer(a.link_layer),
		MaxMTU: mtu(a.max_mtu), ActiveMTU: mtu(a.active_mtu),
		LID: uint16(a.lid), LMC: uint8(a.lmc), SMLID: uint16(a.sm_lid), SMSL: uint8(a.sm_sl),
		SubnetTimeout: uint8(a.subnet_timeout),
	}
}

// mtu translates enum ibv_mtu. It returns 0 for an unknown value.
func mtu(n uint32) hca.MTU {
	if n < C.IBV_MTU_256 || n > C.IBV_MTU_4096 {
		return 0
	}
	return 128 << n
}

// gidTable returns the GID table of a port, with each entry at its index. Indices without
// an entry are empty. Entries at limit and above are dropped.
func gidTable(entries []cGIDEntry, port uint8, maxPayload hca.MTU, limit int) (gids []hca.GIDEntry) {
	for i := range entries {
		e := &entries[i]
		if uint32(e.port_num) != uint32(port) || int(e.gid_index) >= limit {
			continue
		}
		for len(gids) <= int(e.gid_index) {
			gids = append(gids, hca.GIDEntry{})
		}
		gids[e.gid_index] = hca.GIDEntry{
			GID:        hca.GID(e.gid),
			Type:       gidType(uint32(e.gid_type)),
			MaxPayload: int(maxPayload),
		}
	}
	return gids
}

func gidType(t uint32) hca.GIDType {
	switch t {
	case C.IBV_GID_TYPE_ROCE_V1:
		return hca.GIDTypeRoCEv1
	case C.IBV_GID_TYPE_ROCE_V2:
		return hca.GIDTypeRoCEv2
	}
	return hca.GIDTypeIB
}

// completion translates a work completion.
func completion(wc *cWC) hca.WC {
	return hca.WC{
		ID: uint64(wc.wr_id), Status: hca.WCStatus(wc.status), Opcode: opcode(wc.opcode),
		Flags: wcFlags(uint32(wc.wc_flags)), VendorErr: uint32(wc.vendor_err), ByteLen: uint32(wc.byte_len),
		QPN: hca.QPN(wc.qp_num), SrcQPN: hca.QPN(wc.src_qp),
		PKeyIndex: uint16(wc.pkey_index), SLID: uint16(wc.slid), SL: uint8(wc.sl),
	}
}

func opcode(n uint32) hca.WCOpcode {
	if n&C.IBV_WC_RECV != 0 {
		return hca.WCRecv
	}
	return hca.WCSend
}

func wcFlags(n uint32) (f hca.WCFlags) {
	if n&C.IBV_WC_GRH != 0 {
		f |= hca.WCFlagGRH
	}
	if n&C.IBV_WC_IP_CSUM_OK != 0 {
		f |= hca.WCFlagIPCsumOK
	}
	return f
}
