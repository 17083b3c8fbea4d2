"""Prints membership.txt: IGMP and MLD packets made by scapy. A line is: name hexadecimal."""
import logging
logging.getLogger("scapy").setLevel(logging.ERROR)
from scapy.layers.inet import IP, IPOption_Router_Alert
from scapy.layers.inet6 import (
    IPv6, IPv6ExtHdrHopByHop, RouterAlert, ICMPv6MLQuery2, ICMPv6MLQuery, ICMPv6MLReport, ICMPv6MLDone,
    ICMPv6MLReport2, ICMPv6MLDMultAddrRec)
from scapy.contrib.igmp import IGMP
from scapy.contrib.igmpv3 import IGMPv3, IGMPv3mq, IGMPv3mr, IGMPv3gr


def show(name, packet):
    print(name, bytes(packet).hex())


def ip4(dst, igmp, name, options=True):
    show("igmp_" + name, IP(src="10.0.0.7", dst=dst, ttl=1, tos=0xC0, id=0, options=[IPOption_Router_Alert()] if options else []) / igmp)


def record(kind, group, *sources):
    return IGMPv3gr(rtype=kind, maddr=group, srcaddrs=list(sources))


ip4("224.0.0.1", IGMPv3(type=0x11, mrcode=10) / IGMPv3mq(gaddr="0.0.0.0", qrv=2, qqic=125), "our_query")
ip4("224.0.0.1", IGMPv3(type=0x11, mrcode=0x91) / IGMPv3mq(gaddr="0.0.0.0", qrv=2, qqic=125), "query_within_27.2s")
ip4("239.1.1.1", IGMPv3(type=0x11, mrcode=10) / IGMPv3mq(gaddr="239.1.1.1", qrv=2, qqic=125), "query_of_a_group")
ip4("224.0.0.1", IGMP(type=0x11, mrcode=100), "query_of_version_2", options=False)
ip4("224.0.0.1", IGMP(type=0x11, mrcode=0), "query_of_version_1", options=False)
ip4("239.1.1.1", IGMP(type=0x12, gaddr="239.1.1.1"), "report_of_version_1", options=False)
ip4("239.1.1.1", IGMP(type=0x16, gaddr="239.1.1.1"), "report_of_version_2")
ip4("224.0.0.2", IGMP(type=0x17, gaddr="239.1.1.1"), "leave")
ip4("224.0.0.22", IGMPv3(type=0x22) / IGMPv3mr(records=[
    record(4, "239.1.1.1"), record(2, "239.1.1.2", "10.0.0.1"), record(3, "239.1.1.3"), record(3, "239.1.1.4", "10.0.0.1", "10.0.0.2"),
    record(1, "239.1.1.5", "10.0.0.1"), record(5, "239.1.1.6", "10.0.0.1"), record(6, "239.1.1.7", "10.0.0.1"),
    record(4, "224.0.0.1"), record(4, "10.0.0.1")]), "report_of_version_3")


def ip6(dst, mld, name):
    show("mld_" + name, IPv6(src="fe80::7", dst=dst, hlim=1) / IPv6ExtHdrHopByHop(options=[RouterAlert()]) / mld)


def address(kind, group, *sources):
    return ICMPv6MLDMultAddrRec(rtype=kind, dst=group, sources=list(sources))


ip6("ff02::1", ICMPv6MLQuery2(mrd=1000, QRV=2, QQIC=125), "our_query")
ip6("ff02::1", ICMPv6MLQuery2(mrd=0x9001, QRV=2, QQIC=125), "query_within_65.552s")
ip6("ff05::1:3", ICMPv6MLQuery2(mrd=1000, mladdr="ff05::1:3", QRV=2, QQIC=125), "query_of_a_group")
ip6("ff02::1", ICMPv6MLQuery(mrd=10000), "query_of_version_1")
ip6("ff05::1:3", ICMPv6MLReport(mladdr="ff05::1:3"), "report_of_version_1")
ip6("ff02::2", ICMPv6MLDone(mladdr="ff05::1:3"), "done")
ip6("ff02::16", ICMPv6MLReport2(records=[
    address(4, "ff05::1:3"), address(4, "ff02::1:ff00:7"), address(3, "ff05::4"), address(1, "ff05::5", "fd00::1"),
    address(6, "ff05::6", "fd00::1"), address(4, "ff02::1"), address(4, "ff01::1")]), "report_of_version_2")
