"use strict";(()=>{function x(s,t){for(let[e,n]of Object.entries(t))if(n===!1||n===null||n===void 0)s.removeAttribute(e);else{let o=n===!0?"":String(n);s.getAttribute(e)!==o&&s.setAttribute(e,o)}}function d(s,t={},...e){let n=document.createElement(s);return x(n,t),n.append(...e),n}function w(s,t){if(s.textContent===t)return;let e=s.childNodes.length===1?s.firstChild:null;e instanceof Text?e.data=t:s.textContent=t}var k=class{constructor(){this.undo=[]}add(t){this.undo.push(t)}on(t,e,n){t.addEventListener(e,n),this.add(()=>t.removeEventListener(e,n))}every(t,e){let n=setInterval(e,t*1e3);this.add(()=>clearInterval(n))}run(){for(;this.undo.length;)this.undo.pop()?.()}};function f(s,t){return s===1?`1 ${t}`:`${s} ${t}s`}function M(s){let t=[];for(let e of[...s].sort((n,o)=>n-o)){let n=t[t.length-1];n&&n[1]===e-1?n[1]=e:t.push([e,e])}return t.map(([e,n])=>e===n?`${e}`:`${e}-${n}`).join(",")}var $={planned:{sign:"○",words:"planned"},starting:{sign:"…",words:"starting"},idle:{sign:"●",words:"idle"},busy:{sign:"▶",words:"running"},collective:{sign:"⇄",words:"in a collective"},input:{sign:"?",words:"waiting for input"},dead:{sign:"✕",words:"dead"}},Z=Object.keys($);var y="phalanx.toolbar",v={is_loaded:!1,ranks:[],is_auto:!1},H=["starting","restarting","autorestarting","terminating","dead"],_=class{constructor(t,e){this.session=t;this.take=e;this.is_asked=!1;this.on_status=(t,e)=>{let{kernel:n}=this;H.includes(e)?(this.is_asked=!1,this.take(v)):n&&e==="idle"&&!this.is_asked&&(this.is_asked=!0,n.requestCommInfo({target_name:y}).then(o=>y in(o.content.comms??{})&&n===this.kernel&&this.send({kind:"look"}),()=>{}))};this.on_message=(t,e)=>{if(e.header.msg_type!=="comm_msg"||e.content.comm_id!==y)return;let n=e.content.data;this.take(n),n.is_new&&this.send({kind:"look"})};t.statusChanged.connect(this.on_status),t.iopubMessage.connect(this.on_message)}close(){this.session.statusChanged.disconnect(this.on_status),this.session.iopubMessage.disconnect(this.on_message)}get kernel(){return this.session.session?.kernel??null}begin(){this.is_asked=!1,this.take(v),this.on_status(null,this.kernel?.status??"unknown")}set_auto(t){this.send({kind:"auto",on:t})}send(t){let{kernel:e}=this;if(!e)return;let i={channel:"shell",header:{msg_id:crypto.getRandomValues(new Uint32Array(4)).join("-"),msg_type:"comm_msg",session:e.clientId,username:e.username,date:new Date().toISOString(),version:"5.2"},parent_header:{},metadata:{},content:{comm_id:y,data:t},buffers:[]};e.sendShellMessage(i,!1,!0)}},L=new WeakSet;function j(s,t){if(L.has(s))return;L.add(s);let e=s.requestExecute;s.requestExecute=(n,o,i)=>{let r=t()?{...i,phalanx:{autodistributed:!0}}:i;return e.call(s,n,o,r)}}var W=4,F=9999,O=16,P=["dead","starting","busy","idle"];function I(s){let t=s.map((e,n)=>n);return P.map(e=>[e,t.filter(n=>s[n]===e)]).filter(([,e])=>e.length>0)}var E=class{constructor(t){this.host=t;this.disposables=new k;this.number=d("input",{type:"text",inputmode:"numeric",maxlength:4,"aria-label":"number of ranks",title:"Number of ranks: Enter starts them, 0 stops them"});this.apply=d("button",{class:"px-apply",type:"button"});this.dots=d("button",{class:"px-dots",type:"button"});this.auto=d("input",{type:"checkbox"});this.note=d("span",{class:"px-note",role:"status"});this.frame=v;this.is_typed=!1;this.is_waiting=!1;this.asked_auto=null;let e="Every cell runs on the ranks, as after %autodistributed on; %%local runs one in the notebook. Kept in the notebook";this.node=d("div",{class:"px-ranks",role:"group","aria-label":"Phalanx ranks"},d("label",{},"ranks ",this.number),this.apply,this.dots,d("label",{title:e},this.auto,"every cell"),this.note),this.disposables.on(this.number,"input",()=>{this.is_typed=!0,this.draw()}),this.disposables.on(this.number,"keydown",n=>{n.stopPropagation(),n.key==="Escape"&&this.forget_typed(),n.key==="Enter"&&(n.preventDefault(),this.change())}),this.disposables.on(this.apply,"click",()=>{this.change()}),this.disposables.on(this.dots,"click",()=>{this.host.run("%distributed topology")}),this.disposables.on(this.auto,"change",()=>{this.asked_auto=this.auto.checked,this.host.keep({autodistributed:this.asked_auto}),this.host.set_auto(this.asked_auto)}),this.draw()}close(){this.disposables.run()}take(t){this.frame=t,(t.ranks.length===0||t.is_auto===this.asked_auto)&&(this.asked_auto=null),t.ranks.some(n=>n!=="starting")&&this.asked_auto===null&&t.is_auto!==!!this.host.wish().autodistributed&&this.host.keep({autodistributed:t.is_auto}),this.draw()}draw(){let{ranks:t}=this.frame,e=t.length,n=this.host.wish();this.is_typed||(this.number.value=String(e||n.ranks||W));let o=this.wanted(),i=o===e||o===null?"":e===0?"Start":o===0?"Stop":"Restart";w(this.apply,i),this.apply.hidden=!i,this.apply.disabled=this.is_waiting,x(this.number,{"aria-invalid":o===null?"true":null}),this.auto.checked=!!n.autodistributed,this.draw_dots()}draw_dots(){let{ranks:t}=this.frame;this.dots.hidden=t.length===0;let e=I(t),n=l=>d("i",{"data-state":l}),o=t.length>O;this.dots.replaceChildren(...o?e.flatMap(([l,a])=>[n(l),String(a.length)]):t.map(n));let i=e.map(([l,a])=>`${$[l].words}: ${M(a)}`).join("; "),r=`${f(t.length,"rank")}. ${i}. Click to show the topology`;x(this.dots,{title:r,"aria-label":r})}wanted(){let t=this.number.value.trim();return/^\d{1,4}$/.test(t)&&Number(t)<=F?Number(t):null}forget_typed(){this.is_typed=!1,this.draw()}async change(){let t=this.wanted(),e=this.frame.ranks.length;if(t===null||t===e||this.is_waiting)return;let n=`%distributed start -n ${t}`,o=this.frame.is_loaded?n:`%load_ext phalanx
${n}`;if(e>0){o=t===0?"%distributed stop":`%distributed stop
${n}`;let i=t===0?`Stop ${f(e,"rank")}?`:`Restart with ${f(t,"rank")}?`,r=`All variables on the ${f(e,"rank")} will be lost.`;if(!await this.host.confirm(i,r,t===0?"Stop":"Restart")){this.forget_typed();return}}t>0&&this.host.keep({ranks:t}),this.is_waiting=!0,w(this.note,this.host.is_busy()?"after the running cell":""),this.draw();try{await this.host.run(o)}finally{this.is_waiting=this.is_typed=!1,w(this.note,""),this.draw()}}};var R=`/* The toolbar's own look: JupyterLab's colours and sizes, in both themes. As its kernel indicator, a ring is idle and a
   disc is busy; a dead rank is a cross, so that no state is told by colour alone. */
.px-ranks {
  display: flex;
  align-items: center;
  gap: 6px;
  padding: 0 6px;
  color: var(--jp-ui-font-color1);
  font-family: var(--jp-ui-font-family);
  font-size: var(--jp-ui-font-size1);
  white-space: nowrap;
}
.px-ranks [hidden] {
  display: none;
}
.px-ranks label {
  display: flex;
  align-items: center;
  gap: 4px;
}
.px-ranks :is(input, button) {
  height: 20px;
  margin: 0;
  box-sizing: border-box;
  color: inherit;
  font: inherit;
  border: var(--jp-border-width) solid var(--jp-border-color1);
  border-radius: var(--jp-border-radius);
  background: var(--jp-layout-color1);
}
.px-ranks input[type="text"] {
  width: 4ch;
  padding: 0 4px;
  text-align: center;
}
.px-ranks input[aria-invalid] {
  border-color: var(--jp-error-color1);
}
.px-ranks input[type="checkbox"] {
  width: 14px;
  height: 14px;
  accent-color: var(--jp-brand-color1);
}
.px-ranks button {
  padding: 0 6px;
  cursor: pointer;
}
.px-ranks button:hover {
  background: var(--jp-layout-color2);
}
.px-ranks button:disabled {
  opacity: 0.5;
  cursor: default;
}
.px-ranks :is(input, button):focus-visible {
  outline: 1px solid var(--jp-brand-color1);
  outline-offset: 1px;
}
.px-ranks .px-dots {
  display: flex;
  align-items: center;
  gap: 3px;
  border-color: transparent;
}
.px-ranks i {
  width: 9px;
  height: 9px;
  box-sizing: border-box;
  border: 2px solid currentcolor;
  border-radius: 50%;
  forced-color-adjust: none;
}
.px-ranks i[data-state="idle"] {
  color: var(--jp-success-color1);
}
.px-ranks i[data-state="busy"] {
  color: var(--jp-brand-color1);
  background: currentcolor;
}
.px-ranks i[data-state="starting"] {
  color: var(--jp-ui-font-color3);
  border-style: dotted;
}
.px-ranks i[data-state="dead"] {
  color: var(--jp-error-color1);
  border: 0;
  border-radius: 0;
  background:
    linear-gradient(45deg, transparent 40%, currentcolor 40% 60%, transparent 60%),
    linear-gradient(-45deg, transparent 40%, currentcolor 40% 60%, transparent 60%);
}
.px-ranks .px-note {
  color: var(--jp-ui-font-color2);
}
.px-ranks .px-note:empty {
  display: none;
}
`;var N="phalanx-toolbar",B="phalanx",C="phalanx-ranks",U=10,A={};async function S(s){let e=Object.entries(A[s]??{}).sort(([n,o],[i,r])=>+!!r.loaded-+!!o.loaded||i.localeCompare(n,"en",{numeric:!0}))[0]?.[1];if(!e)throw new Error(`${N}: this page does not share ${s}`);return(await e.get())()}async function z(){let{Widget:s}=await S("@lumino/widgets"),{NotebookActions:t}=await S("@jupyterlab/notebook"),{Dialog:e,showDialog:n}=await S("@jupyterlab/apputils");function o(r,l){let{content:a,context:b,sessionContext:g}=r,p=()=>b.model.getMetadata(B)??{};return{wish:p,keep:u=>b.model.setMetadata(B,{...p(),...u}),is_busy:()=>g.session?.kernel?.status==="busy",set_auto:u=>l.set_auto(u),run:async u=>{let h=a.widgets.findIndex(({model:m})=>m.type==="code"&&m.sharedModel.getSource().trim()===u);h<0&&(h=Math.min(a.activeCellIndex+1,a.widgets.length),b.model.sharedModel.insertCell(h,{cell_type:"code",source:u,metadata:{trusted:!0}})),a.activeCellIndex=h,a.deselectAll(),await t.run(a,g)},confirm:async(u,h,m)=>{let c=[e.cancelButton(),e.warnButton({label:m})];return(await n({title:u,body:h,buttons:c,defaultButton:0})).button.accept}}}function i(r){let{model:l}=r.context,a=new _(r.sessionContext,c=>g.take(c)),b=o(r,a),g=new E(b),p=new s({node:g.node}),u=()=>!l.isDisposed&&!!b.wish().autodistributed,h=()=>g.draw(),m=()=>{a.begin();let{kernel:c}=a;c&&(j(c,u),c.info.then(K=>p.setHidden(K.language_info.name!=="python"),()=>{}))};return r.sessionContext.kernelChanged.connect(m),m(),l.metadataChanged.connect(h),r.revealed.then(()=>{let{toolbar:c}=r;p.isDisposed||c.insertAfter("cellType",C,p)||c.insertItem(U,C,p)}),p.disposed.connect(()=>{r.sessionContext.kernelChanged.disconnect(m),l.metadataChanged.disconnect(h),a.close(),g.close()}),p}return{id:`${N}:ranks`,description:"The ranks of a notebook's kernel, in its toolbar.",autoStart:!0,activate:r=>{document.head.append(d("style",{},R)),r.docRegistry.addWidgetExtension("Notebook",{createNew:i})}}}var G={init:s=>{A=s},get:async()=>{let s=await z();return()=>({__esModule:!0,default:s})}},T=window;(T._JUPYTERLAB??(T._JUPYTERLAB={}))[N]=G;})();
