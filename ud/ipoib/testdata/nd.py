"""Prints nd.txt: Neighbour Discovery packets made by scapy, lengths and checksums
included, in the Ethernet and in the IPoIB form. A line is: name form hexadecimal."""
from scapy.all import (
    UDP, ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6ND_RA, ICMPv6ND_RS, ICMPv6ND_Redirect,
    ICMPv6NDOptDstLLAddr, ICMPv6NDOptMTU, ICMPv6NDOptPrefixInfo, ICMPv6NDOptRDNSS,
    ICMPv6NDOptRedirectedHdr, ICMPv6NDOptSrcLLAddr, ICMPv6NDOptUnknown, IPv6, raw)

MACS = {"a": "02:00:00:00:00:0a", "b": "02:00:00:00:00:0b"}
ADDRS = {  # flags, QPN, GID
    "a": bytes.fromhex("00000048" + "fe80000000000000020000fffe00000a"),
    "b": bytes.fromhex("0012ab49" + "fe80000000000000020000fffe00000b"),
}


def link(form, kind, who):
    """Returns a link-layer address option: kind 1 is the source's, 2 the target's."""
    if form == "ipoib":
        return ICMPv6NDOptUnknown(type=kind, len=3, data=bytes(2) + ADDRS[who])
    return (ICMPv6NDOptSrcLLAddr, ICMPv6NDOptDstLLAddr)[kind - 1](lladdr=MACS[who])


def packets(form):
    nonce = ICMPv6NDOptUnknown(type=14, len=1, data=b"\1\2\3\4\5\6")
    yield "rs", IPv6(src="fe80::a", dst="ff02::2") / ICMPv6ND_RS() / link(form, 1, "a")
    yield "ra", (IPv6(src="fe80::b", dst="ff02::1") / ICMPv6ND_RA(chlim=64, routerlifetime=1800)
                 / link(form, 1, "b") / ICMPv6NDOptMTU(mtu=1444)
                 / ICMPv6NDOptPrefixInfo(prefix="2001:db8::", prefixlen=64)
                 / ICMPv6NDOptRDNSS(dns=["2001:db8::53"], lifetime=600))
    yield "ns", (IPv6(src="2001:db8::a", dst="ff02::1:ff00:b")
                 / ICMPv6ND_NS(tgt="2001:db8::b") / link(form, 1, "a"))
    yield "dad", IPv6(src="::", dst="ff02::1:ff00:a") / ICMPv6ND_NS(tgt="2001:db8::a") / nonce
    yield "na", (IPv6(src="2001:db8::b", dst="2001:db8::a")
                 / ICMPv6ND_NA(R=0, S=1, O=1, tgt="2001:db8::b") / link(form, 2, "b"))
    yield "na-all", (IPv6(src="2001:db8::b", dst="ff02::1")
                     / ICMPv6ND_NA(R=0, S=0, O=1, tgt="2001:db8::b") / link(form, 2, "b"))
    inner = IPv6(src="2001:db8::a", dst="2001:db8:9::9", hlim=63) / UDP(sport=7, dport=9) / bytes(64)
    yield "redirect", (IPv6(src="fe80::b", dst="2001:db8::a")
                       / ICMPv6ND_Redirect(tgt="fe80::a", dst="2001:db8:9::9")
                       / link(form, 2, "a") / ICMPv6NDOptRedirectedHdr(pkt=raw(inner)))


for form in ("ether", "ipoib"):
    for name, packet in packets(form):
        packet.hlim = 255
        print(name, form, raw(packet).hex())
