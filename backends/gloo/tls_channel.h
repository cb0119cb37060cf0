// TLS on the connections of Gloo. Its own TLS takes certificates alone and waits in its event
// loop's thread; so the patch of Gloo lets a pair of ranks move its bytes by a Channel, and this
// one is a tls::Session, as backends tcp and hierarchical use it.
#ifndef SYNCLINE_BACKENDS_GLOO_TLS_CHANNEL_H_
#define SYNCLINE_BACKENDS_GLOO_TLS_CHANNEL_H_

#include <memory>

#include "core/tls/context.h"
#include "gloo/transport/tcp/channel.h"

namespace syncline::gloo_backend {

// Both sides take the number of the connection, which the listening one has drawn and which only
// the ranks know, into what they prove: so a connection cannot stand for another of the job.
// Whatever fails is thrown as a gloo::IoException.
gloo::transport::tcp::ChannelFactory TlsChannels(std::shared_ptr<tls::Context> tls);

}  // namespace syncline::gloo_backend

#endif  // SYNCLINE_BACKENDS_GLOO_TLS_CHANNEL_H_
