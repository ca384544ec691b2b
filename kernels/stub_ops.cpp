#include <sherd/kernels/ops.h>
#include <cmath>
#include <limits>
namespace sherd::ops {
static float ld(const Tensor& t, int64_t i) { return t.dtype()==DType::f32 ? t.data<float>()[i] : t.dtype()==DType::bf16 ? float(t.data<bf16>()[i]) : float(t.data<f16>()[i]); }
static void st(const Tensor& t, int64_t i, float v) { if (t.dtype()==DType::f32) t.data<float>()[i]=v; else if (t.dtype()==DType::bf16) t.data<bf16>()[i]=bf16(v); else t.data<f16>()[i]=f16(v); }
void muon_momentum(Stream& s, const Tensor& packed, std::span<const MomentumSegment> segs, float mu, bool nesterov, float l2) {
  std::vector<MomentumSegment> v(segs.begin(), segs.end());
  s.submit("m", [=](ExecutionContext&) { for (auto& g : v) for (int64_t i=0;i<g.count;++i) { float x=g.gradient[i]; if (l2!=0) x+=l2*g.weight[i]; float out;
    if (!std::isfinite(x)) out=std::numeric_limits<float>::quiet_NaN(); else { float b=g.buffer[i]+(1-mu)*(x-g.buffer[i]); g.buffer[i]=b; out=nesterov? x+mu*(b-x):b; }
    if (g.at>=0) st(packed,g.at+i,out);} });
}
void muon_update(Stream& s, std::span<const UpdateSegment> segs, const Tensor& packed) {
  std::vector<UpdateSegment> v(segs.begin(), segs.end());
  s.submit("u", [=](ExecutionContext&) { for (auto& g : v) for (int64_t i=0;i<g.count;++i) g.weight[i]=g.decay*g.weight[i]+g.alpha*ld(packed,g.at+i); });
}
void copy_segments(Stream& s, const Tensor& to, const Tensor& from, std::span<const CopySegment> segs) {
  std::vector<CopySegment> v(segs.begin(), segs.end());
  s.submit("c", [=](ExecutionContext&) { for (auto& g : v) for (int64_t i=0;i<g.count;++i) st(to,g.to+i,ld(from,g.from+i)); });
}
void orthogonalize(Stream& s, const Tensor& out, const Tensor& in, const Tensor& status, const OrthogonalizeOptions& o) {
  for (int64_t b=0;b<in.size(0);++b) { const int64_t n=in.size(1)*in.size(2);
    newton_schulz(s, out.flat(b*n,b*n+n).view({in.size(1),in.size(2)}), in.flat(b*n,b*n+n).view({in.size(1),in.size(2)}), o.steps, o.eps);
    }
  s.submit("st",[=](ExecutionContext&){ for (int64_t b=0;b<in.size(0);++b){ const int64_t n=in.size(1)*in.size(2); double q=0; for(int64_t i=0;i<n;++i) q+=double(in.data<float>()[b*n+i])*in.data<float>()[b*n+i];
   status.data<int32_t>()[b]= !std::isfinite(q)?2:q==0?1:0; if(!std::isfinite(q)) for(int64_t i=0;i<n;++i) out.data<float>()[b*n+i]=0; }});
}
void gram_product(Stream& s, const Tensor& g, const Tensor& x, bool cr) {
  s.submit("gp",[=](ExecutionContext&){ const int64_t R=x.size(1),C=x.size(2),n=cr?C:R; for(int64_t b=0;b<x.size(0);++b){const float* X=x.data<float>()+b*R*C; float*G=g.data<float>()+b*n*n;
   for(int64_t i=0;i<n;++i)for(int64_t j=0;j<n;++j){float a=0; if(cr) for(int64_t k=0;k<R;++k)a+=X[k*C+i]*X[k*C+j]; else for(int64_t k=0;k<C;++k)a+=X[i*C+k]*X[j*C+k]; G[i*n+j]=a;}}});
}
void gram_iterate(Stream& s, const Tensor& q, const Tensor& g, const Tensor& status, int first, int last, const OrthogonalizeOptions& o) {
  s.submit("gi",[=](ExecutionContext&){ const int64_t n=g.size(1); for(int64_t b=0;b<g.size(0);++b){ float*G=g.data<float>()+b*n*n; float*Q=q.data<float>()+b*n*n;
   auto mul=[&](const std::vector<double>&a,const std::vector<double>&c){std::vector<double> r(n*n);for(int64_t i=0;i<n;++i)for(int64_t k=0;k<n;++k)for(int64_t j=0;j<n;++j)r[i*n+j]+=a[i*n+k]*c[k*n+j];return r;};
   std::vector<double> R(G,G+n*n),P(n*n); double f=1; if(first==0){double t=0;for(int64_t i=0;i<n;++i)t+=R[i*n+i]; status.data<int32_t>()[b]=!std::isfinite(t)?2:t==0?1:0; f=1/(std::sqrt(t)+o.eps); for(auto&v:R)v*=f*f;}
   for(int64_t i=0;i<n;++i)P[i*n+i]=f;
   for(int st2=first;st2<last;++st2){auto c=o.steps[st2];auto R2=mul(R,R);std::vector<double>Z(n*n);for(int64_t i=0;i<n*n;++i)Z[i]=double(c.b)*R[i]+double(c.c)*R2[i];for(int64_t i=0;i<n;++i)Z[i*n+i]+=double(c.a);P=mul(P,Z);R=mul(mul(Z,R),Z);}
   bool bad = status.data<int32_t>()[b]!=0; for(int64_t i=0;i<n*n;++i)Q[i]=bad?0.f:float(P[i]);}});
}
void gram_apply(Stream& s, const Tensor& out, const Tensor& x, const Tensor& q, bool cr) {
  s.submit("ga",[=](ExecutionContext&){ const int64_t R=x.size(1),C=x.size(2),n=cr?C:R; for(int64_t b=0;b<x.size(0);++b){const float*X=x.data<float>()+b*R*C;const float*Q=q.data<float>()+b*n*n;float*O=out.data<float>()+b*R*C;
   for(int64_t i=0;i<R;++i)for(int64_t j=0;j<C;++j){double a=0; if(cr)for(int64_t k=0;k<C;++k)a+=double(X[i*C+k])*Q[k*n+j]; else for(int64_t k=0;k<R;++k)a+=double(Q[i*n+k])*X[k*C+j]; O[i*C+j]=float(a);}}});
}
}
