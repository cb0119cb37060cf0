// TLS on the connections of Gloo. Its own TLS takes certificates alone and waits in its event
// loop's thread; so the patch of Gloo lets a pair of ranks move its bytes by a Channel, and this
// one is a tls::Session, as backends tcp and hierarchical use it.
#ifndef SYNCLINE_BACKENDS_GLOO_TLS_CHANNEL_H_
#define SYNCLINE_BACKENDS_GLOO_TLS_CHANNEL_H_

#include <memory>

#include "core/tls/context.h"
#include "gloo/transport/tcp/channel.h"

namespace syncline::gloo_backend {

// The purpose of each session has the number of the connection, which the listening side has drawn:
// so nobody on the way can make a connection stand for that of another rank. Errors go through
// Gloo as ThrowThroughGloo has it.
gloo::transport::tcp::ChannelFactory TlsChannels(std::shared_ptr<tls::Context> tls);

}  // namespace syncline::gloo_backend

#endif  // SYNCLINE_BACKENDS_GLOO_TLS_CHANNEL_H_
